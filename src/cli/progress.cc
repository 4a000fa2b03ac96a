#include "cli/progress.h"

#include <algorithm>
#include <cstddef>

#include "cli/figures.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds bar_interval = 100ms;
constexpr std::chrono::nanoseconds line_interval = 5s;
constexpr std::size_t bar_width = 24;
// Back to the first column, and clear to the end of the line.
constexpr const char* start_of_line = "\r\033[K";

std::string bar_of(double fraction) {
  const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(bar_width));
  return "[" + std::string(filled, '#') + std::string(bar_width - filled, '.') + "]";
}

}  // namespace

Progress::Progress(const CommandContext& context, std::string what)
    : err_(context.err),
      env_(context.env),
      terminal_(context.err_is_terminal),
      what_(std::move(what)),
      start_(env_.now()),
      drawn_(start_) {}

void Progress::update(std::uint64_t tokens_done, std::uint64_t tokens_total) {
  const std::chrono::nanoseconds now = env_.now();
  // A step that is over before the first interval has passed shows nothing at all.
  if (now - drawn_ < (terminal_ ? bar_interval : line_interval) || tokens_total == 0) return;
  drawn_ = now;

  tokens_done = std::min(tokens_done, tokens_total);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(tokens_done) / seconds;
  const double seconds_left = static_cast<double>(tokens_total - tokens_done) / rate;
  const std::string figures = format_count(tokens_done) + " of " + format_count(tokens_total) +
                              " tokens, " + format_rate(rate) + ", " +
                              format_seconds(seconds_left) + " left";
  if (terminal_) {
    const double fraction = static_cast<double>(tokens_done) / static_cast<double>(tokens_total);
    err_ << start_of_line << what_ << " " << bar_of(fraction) << " " << figures << std::flush;
    bar_visible_ = true;
  } else {
    err_ << "headrace: " << what_ << " " << figures << std::endl;
  }
}

void Progress::finish() {
  if (bar_visible_) err_ << start_of_line << std::flush;
  bar_visible_ = false;
}

}  // namespace headrace
