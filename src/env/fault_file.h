// Files of a FaultEnv, and the ways in which data goes bad.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "env/fault_env.h"

namespace headrace {

/// "injected fault: read 'path'".
Error injected_error(const Fault& fault, EnvOperation operation, const std::string& path);

/// Applies flip_bit or end_early to the contents of a whole file.
void damage(const Fault& fault, std::string& contents);

class FaultFile final : public File {
 public:
  FaultFile(FaultEnv& env, std::unique_ptr<File> base, std::string path)
      : env_(env), base_(std::move(base)), path_(std::move(path)) {}

  Result<void> read_at(std::uint64_t offset, std::span<const MutableBytes> parts) override;
  Result<void> write_at(std::uint64_t offset, std::span<const Bytes> parts) override;
  Result<void> sync() override;
  Result<std::uint64_t> size() const override;
  Result<void> truncate(std::uint64_t size) override;
  void drop_cache() override { base_->drop_cache(); }
  Result<void> use_direct_io() override { return base_->use_direct_io(); }

 private:
  FaultEnv& env_;
  const std::unique_ptr<File> base_;
  const std::string path_;
};

}  // namespace headrace
