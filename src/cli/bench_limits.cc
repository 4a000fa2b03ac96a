#include "cli/bench_limits.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernel/kernels.h"

namespace headrace {
namespace {

constexpr std::uint64_t disk_part_bytes = std::uint64_t{4} << 20;
/// A round of a peak kernel is long enough for the clock, and for the core to leave its sleep.
constexpr double peak_round_seconds = 0.05;

/// Seconds that `work` took.
template <typename Work>
double timed(Env& env, Work work) {
  const std::chrono::nanoseconds start = env.now();
  work();
  return std::chrono::duration<double>(env.now() - start).count();
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

Result<double> measure_memory(Env& env, const LimitsOptions& options) {
  HEADRACE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(options.memory_bytes));
  auto* const values = reinterpret_cast<float*>(buffer.data());
  const std::size_t part = buffer.size() / sizeof(float) / options.threads / 1024 * 1024;
  std::vector<float> sums(options.threads);
  const auto parallel = env.new_parallel(options.threads);
  // Pages that nobody wrote would all be the same one.
  parallel->run(options.threads, [&](std::size_t task, std::size_t) {
    std::fill_n(values + task * part, part, 1.0F);
  });
  double best = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    const double seconds = timed(env, [&] {
      parallel->run(options.threads, [&](std::size_t task, std::size_t) {
        sums[task] = kernel::kernels().sum_floats(values + task * part, part);
      });
    });
    best = std::max(
        best, per_second(static_cast<double>(part * options.threads * sizeof(float)), seconds));
  }
  return best;
}

double measure_peak(Env& env, const LimitsOptions& options,
                    std::uint64_t (*kernel)(std::uint32_t steps)) {
  const auto parallel = env.new_parallel(options.threads);
  std::uint32_t steps = std::min(4096U, options.peak_steps);
  double best = 0;
  for (std::uint32_t round = 0; round < options.rounds;) {
    std::vector<std::uint64_t> done(options.threads);
    const double seconds = timed(env, [&] {
      parallel->run(options.threads,
                    [&](std::size_t task, std::size_t) { done[task] = kernel(steps); });
    });
    if (done.front() == 0) return 0;
    if (seconds < peak_round_seconds && steps < options.peak_steps) {
      steps = std::min(steps * 4, options.peak_steps);
      continue;
    }
    const double operations = static_cast<double>(done.front()) * options.threads;
    best = std::max(best, per_second(operations, seconds));
    ++round;
  }
  return best;
}

Result<void> write_and_read(Env& env, const LimitsOptions& options, File& file,
                            MachineLimits& limits) {
  const std::uint64_t parts = std::max<std::uint64_t>(1, options.disk_bytes / disk_part_bytes);
  const auto bytes = static_cast<double>(parts * disk_part_bytes);
  HEADRACE_TRY_ASSIGN(AlignedBuffer part, AlignedBuffer::allocate(disk_part_bytes));
  // Bytes that no file system can pack or leave out.
  for (std::size_t at = 0; at < part.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t value = (at + 1) * 0x9e3779b97f4a7c15U;
    std::copy_n(reinterpret_cast<const std::byte*>(&value), sizeof value, part.data() + at);
  }
  Result<void> status;
  const Bytes written = part.span();
  const double write_seconds = timed(env, [&] {
    for (std::uint64_t i = 0; i < parts && status.ok(); ++i) {
      status = file.write_at(i * disk_part_bytes, std::span(&written, 1));
    }
    if (status.ok()) status = file.sync();
  });
  HEADRACE_TRY(status);
  file.drop_cache();
  const MutableBytes read = part.span();
  const double read_seconds = timed(env, [&] {
    for (std::uint64_t i = 0; i < parts && status.ok(); ++i) {
      status = file.read_at(i * disk_part_bytes, std::span(&read, 1));
    }
  });
  HEADRACE_TRY(status);
  limits.disk_write_bytes = per_second(bytes, write_seconds);
  limits.disk_read_bytes = per_second(bytes, read_seconds);
  return {};
}

Result<void> measure_disk(Env& env, const LimitsOptions& options, MachineLimits& limits) {
  const bool was_there = env.exists(options.disk_directory);
  HEADRACE_TRY(env.make_directories(options.disk_directory));
  const std::string path =
      options.disk_directory + "/headrace-bench-" + std::to_string(env.random());
  Result<void> status;
  {
    HEADRACE_TRY_ASSIGN(const auto file, env.open_file(path, OpenMode::create_new));
    status = write_and_read(env, options, *file, limits);
  }
  HEADRACE_TRY(env.remove_file(path));
  if (!was_there) HEADRACE_TRY(env.remove_directory(options.disk_directory));
  return status;
}

/// The value after "key\t: ", as in /proc/cpuinfo.
std::string value_of(const std::string& text, const std::string& key) {
  const std::size_t start = text.find(key);
  if (start == std::string::npos) return "";
  const std::size_t end = text.find('\n', start);
  const std::size_t value = text.find(": ", start);
  return value < end ? text.substr(value + 2, end - value - 2) : "";
}

}  // namespace

Result<MachineLimits> measure_limits(Env& env, const LimitsOptions& options) {
  MachineLimits limits;
  HEADRACE_TRY_ASSIGN(limits.memory_read_bytes, measure_memory(env, options));
  limits.int8_operations = measure_peak(env, options, kernel::kernels().int8_peak);
  limits.bf16_operations = measure_peak(env, options, kernel::kernels().bf16_peak);
  HEADRACE_TRY(measure_disk(env, options, limits));
  return limits;
}

Machine describe_machine(Env& env) {
  Machine machine = {.cores = env.hardware_threads(),
                     .memory_bytes = env.physical_memory_bytes(),
                     .instruction_set = kernel::kernels().name};
  const Result<std::string> cpu = env.read_file("/proc/cpuinfo");
  if (cpu.ok()) machine.cpu = value_of(*cpu, "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown";
  // Cloud providers shorten the name; the family still tells the generation.
  const std::string family = cpu.ok() ? value_of(*cpu, "cpu family") : "";
  if (!family.empty()) machine.cpu += " (family " + family + ")";
  const Result<std::string> system = env.read_file("/proc/sys/kernel/osrelease");
  machine.system = "Linux";
  if (system.ok()) machine.system += " " + system->substr(0, system->find('\n'));
  return machine;
}

}  // namespace headrace
