#include "env/fault_file.h"

#include <algorithm>
#include <climits>

namespace headrace {
namespace {

void flip_bit(std::uint64_t bit, MutableBytes bytes) {
  if (bytes.empty()) return;
  bit %= bytes.size() * CHAR_BIT;
  bytes[bit / CHAR_BIT] ^= std::byte{1} << (bit % CHAR_BIT);
}

// The parts in one piece, so that a bit can be chosen among them and the piece cut in two.
std::vector<std::byte> joined(std::span<const Bytes> parts) {
  std::vector<std::byte> whole;
  for (const Bytes part : parts) whole.insert(whole.end(), part.begin(), part.end());
  return whole;
}

void flip_bit(std::uint64_t bit, std::span<const MutableBytes> parts) {
  std::vector<std::byte> whole = joined(std::vector<Bytes>(parts.begin(), parts.end()));
  flip_bit(bit, MutableBytes(whole));
  auto from = whole.cbegin();
  for (const MutableBytes part : parts) {
    std::copy_n(from, part.size(), part.begin());
    from += static_cast<std::ptrdiff_t>(part.size());
  }
}

}  // namespace

Error injected_error(const Fault& fault, EnvOperation operation, const std::string& path) {
  return {fault.code, std::string("injected fault: ") + to_string(operation) + " '" + path + "'"};
}

void damage(const Fault& fault, std::string& contents) {
  if (fault.kind == FaultKind::end_early) contents.resize(contents.size() / 2);
  if (fault.kind == FaultKind::flip_bit) {
    flip_bit(fault.bit, std::as_writable_bytes(std::span(contents)));
  }
}

Result<void> FaultFile::read_at(std::uint64_t offset, std::span<const MutableBytes> parts) {
  const auto fault = env_.next_fault(EnvOperation::read);
  if (fault && fault->kind == FaultKind::fail) {
    return injected_error(*fault, EnvOperation::read, path_);
  }
  if (fault && fault->kind == FaultKind::end_early) {
    return Error{ErrorCode::corrupt, "injected fault: '" + path_ + "' ends early"};
  }
  HEADRACE_TRY(base_->read_at(offset, parts));
  if (fault) flip_bit(fault->bit, parts);
  return {};
}

Result<void> FaultFile::write_at(std::uint64_t offset, std::span<const Bytes> parts) {
  const auto fault = env_.next_fault(EnvOperation::write);
  if (!fault) return base_->write_at(offset, parts);
  if (fault->kind == FaultKind::fail) return injected_error(*fault, EnvOperation::write, path_);

  std::vector<std::byte> whole = joined(parts);
  if (fault->kind == FaultKind::flip_bit) flip_bit(fault->bit, MutableBytes(whole));
  if (fault->kind == FaultKind::tear) whole.resize(whole.size() / 2);
  const Bytes changed = whole;
  HEADRACE_TRY(base_->write_at(offset, std::span(&changed, 1)));
  if (fault->kind == FaultKind::tear) return injected_error(*fault, EnvOperation::write, path_);
  return {};
}

Result<void> FaultFile::sync() {
  const auto fault = env_.next_fault(EnvOperation::sync);
  if (fault) return injected_error(*fault, EnvOperation::sync, path_);
  return base_->sync();
}

Result<std::uint64_t> FaultFile::size() const {
  const auto fault = env_.next_fault(EnvOperation::size);
  if (fault) return injected_error(*fault, EnvOperation::size, path_);
  return base_->size();
}

Result<void> FaultFile::truncate(std::uint64_t size) {
  const auto fault = env_.next_fault(EnvOperation::truncate);
  if (fault) return injected_error(*fault, EnvOperation::truncate, path_);
  return base_->truncate(size);
}

}  // namespace headrace
