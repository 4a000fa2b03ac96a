#include "tests/support/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>

namespace headrace::test {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

std::string path_in_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::filesystem::exists(value) ? value : "";
}

/// Runs in the child; only what is safe after fork().
[[noreturn]] void become_command(char* const* arguments, const CommandOptions& options,
                                 const Pipe& in, const Pipe& out, const Pipe& err) {
  dup2(in.read_end, STDIN_FILENO);
  dup2(out.write_end, STDOUT_FILENO);
  dup2(err.write_end, STDERR_FILENO);
  if (options.largest_file_bytes > 0) {
    const rlimit limit{.rlim_cur = options.largest_file_bytes,
                       .rlim_max = options.largest_file_bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
  }
  for (const std::string& variable : options.environment)
    putenv(const_cast<char*>(variable.c_str()));
  execv(arguments[0], arguments);
  _exit(127);
}

/// Moves what is there from `fd` to `text`; false at the end.
bool read_some(int fd, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count <= 0) return false;
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return true;
}

/// Reads what the command writes until it closes both, sends the signal when its time has come and
/// ends what lasts too long.
void collect_output(pid_t child, Pipe& in, Pipe& out, Pipe& err, const CommandOptions& options,
                    CommandResult& result) {
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = start + std::chrono::seconds(options.time_limit_seconds);
  const auto signal_not_before =
      start + std::chrono::milliseconds(options.signal_after_milliseconds);
  bool signal_pending = options.signal != 0;
  while (out.read_end >= 0 || err.read_end >= 0) {
    std::array<pollfd, 2> watched = {pollfd{out.read_end, POLLIN, 0},
                                     pollfd{err.read_end, POLLIN, 0}};
    poll(watched.data(), watched.size(), 20);
    if (watched[0].revents != 0 && !read_some(out.read_end, result.out))
      Pipe::close_end(out.read_end);
    if (watched[1].revents != 0 && !read_some(err.read_end, result.err))
      Pipe::close_end(err.read_end);
    const bool has_text = result.out.find(options.signal_after_text) != std::string::npos ||
                          result.err.find(options.signal_after_text) != std::string::npos;
    const auto now = std::chrono::steady_clock::now();
    if (signal_pending && has_text && now >= signal_not_before) {
      if (options.before_signal) options.before_signal();
      kill(child, options.signal);
      signal_pending = false;
      Pipe::close_end(in.write_end);
    }
    if (!result.timed_out && now > deadline) {
      result.timed_out = true;
      kill(child, SIGKILL);
    }
  }
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& arguments,
                          const CommandOptions& options) {
  std::string binary = command_path();
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv = {binary.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);

  CommandResult result;
  Pipe in;
  Pipe out;
  Pipe err;
  const pid_t child = fork();
  if (child < 0) return result;
  if (child == 0) become_command(argv.data(), options, in, out, err);
  Pipe::close_end(in.read_end);
  Pipe::close_end(out.write_end);
  Pipe::close_end(err.write_end);
  signal(SIGPIPE, SIG_IGN);
  // Inputs of tests are small enough for the pipe's buffer, so this does not block.
  if (!options.input.empty() &&
      write(in.write_end, options.input.data(), options.input.size()) < 0) {
    result.err += "[the command did not read its input]";
  }
  if (!options.keep_input_open) Pipe::close_end(in.write_end);
  collect_output(child, in, out, err, options, result);

  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return result;
}

std::string command_path() { return path_in_environment("HEADRACE_BINARY"); }
std::string test_model_path() { return path_in_environment("HEADRACE_TEST_MODEL"); }
std::string test_gemma_path() { return path_in_environment("HEADRACE_TEST_GEMMA"); }

}  // namespace headrace::test
