// BenchEngine: something that `headrace bench` can run a workload on: this program in one of its
// settings, or a peer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_workload.h"
#include "cli/command_context.h"

namespace headrace {

/// What one run of a workload gave.
struct BenchSample {
  double tokens_per_second = 0;
  std::uint64_t kv_bytes_peak = 0;   ///< of KV and its bookkeeping in memory; 0: not known
  std::uint64_t peak_rss_bytes = 0;  ///< of a process of its own; 0: it had none
};

class BenchEngine {
 public:
  explicit BenchEngine(std::string name) : name_(std::move(name)) {}
  virtual ~BenchEngine() = default;

  const std::string& name() const { return name_; }

  /// Runs `workload` once, after a warm-up. Errors: cancelled (an interrupt is pending), all others
  /// mean that this engine cannot run this workload.
  virtual Result<BenchSample> measure(const Workload& workload) = 0;

 private:
  std::string name_;
};

/// What all engines are given alike.
struct BenchSetup {
  std::string model_path;
  std::uint32_t threads = 0;
  std::string disk_directory;       ///< of KV that does not fit; empty: the temporary directory
  std::string llama_bench;          ///< the program; empty: none
  std::string openvino_python;      ///< a Python that has openvino_genai; empty: none
  std::string openvino_script;      ///< bench/openvino_peer.py
  std::string llama_server;         ///< the program; empty: none
  std::string llama_server_script;  ///< bench/llama_server_peer.py
};

/// The names of all engines, and of those that run by default.
std::vector<std::string> all_engine_names();
std::vector<std::string> default_engine_names();

/// `name` is one of them. `context` must outlive it. Errors: not_found, with what to do (a peer
/// that is not there).
Result<std::unique_ptr<BenchEngine>> make_bench_engine(const std::string& name,
                                                       const BenchSetup& setup,
                                                       CommandContext& context);

}  // namespace headrace
