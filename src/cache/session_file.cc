#include "cache/session_file.h"

#include <array>

#include "base/byte_stream.h"
#include "codec/sealed_page.h"

namespace headrace {
namespace {

// "HRSESS\r\n": the line end shows a copy that went through a text conversion.
constexpr std::uint64_t magic = 0x0A0D'5353'4553'5248;
constexpr std::uint32_t format_version = 1;
constexpr std::size_t frame_bytes = 4 + 16;  // length, checksum
constexpr std::uint32_t framed_most = 1U << 28;

Error corrupt() {
  return {ErrorCode::corrupt, "this is no exported session, or it is damaged; export it again"};
}

}  // namespace

Result<SessionFileWriter> SessionFileWriter::create(Env& env, const std::string& path,
                                                    const SessionRecord& session) {
  HEADRACE_TRY_ASSIGN(auto file, env.open_file(path, OpenMode::create_new));
  SessionFileWriter writer(std::move(file));
  ByteWriter header;
  header.number(magic).number(format_version);
  HEADRACE_TRY(writer.write(header.bytes()));
  HEADRACE_TRY(writer.write_framed(encode(session)));
  return writer;
}

Result<void> SessionFileWriter::begin_block(const BlockRecord& block) {
  return write_framed(encode(block));
}

Result<void> SessionFileWriter::add_page(Bytes page) {
  const std::array present = {page.empty() ? std::byte{0} : std::byte{1}};
  HEADRACE_TRY(write(present));
  return write(page);
}

Result<void> SessionFileWriter::finish() { return file_->sync(); }

Result<void> SessionFileWriter::write(Bytes bytes) {
  if (bytes.empty()) return {};
  HEADRACE_TRY(file_->write_at(end_, {&bytes, 1}));
  end_ += bytes.size();
  return {};
}

Result<void> SessionFileWriter::write_framed(Bytes bytes) {
  ByteWriter frame;
  frame.number(static_cast<std::uint32_t>(bytes.size())).digest(hash_bytes(bytes));
  HEADRACE_TRY(write(frame.bytes()));
  return write(bytes);
}

Result<SessionFileReader> SessionFileReader::open(Env& env, const std::string& path) {
  HEADRACE_TRY_ASSIGN(auto file, env.open_file(path, OpenMode::read));
  SessionFileReader reader(std::move(file));
  HEADRACE_TRY_ASSIGN(reader.size_, reader.file_->size());
  std::array<std::byte, 12> bytes;
  HEADRACE_TRY(reader.read(bytes));
  ByteReader header(bytes);
  if (header.number<std::uint64_t>() != magic) return corrupt();
  if (const auto version = header.number<std::uint32_t>(); version != format_version) {
    return Error{ErrorCode::unsupported,
                 "the session was exported in format " + std::to_string(version) +
                     ", this build reads format " + std::to_string(format_version)};
  }
  HEADRACE_TRY_ASSIGN(const std::vector<std::byte> session, reader.read_framed());
  HEADRACE_TRY_ASSIGN(reader.session_, decode_session_record(session));
  HEADRACE_TRY(check_page_shape(reader.session_.shape));
  return reader;
}

Result<std::optional<BlockRecord>> SessionFileReader::next_block() {
  if (position_ == size_) return std::optional<BlockRecord>();
  HEADRACE_TRY_ASSIGN(const std::vector<std::byte> body, read_framed());
  HEADRACE_TRY_ASSIGN(BlockRecord block, decode_block_record(body));
  const std::uint32_t tokens = session_.shape.tokens;
  if (block.checksums.size() != session_.layers || block.tokens.empty() ||
      block.tokens.size() > tokens || block.first_position % tokens != 0) {
    return corrupt();
  }
  return std::optional(std::move(block));
}

Result<bool> SessionFileReader::next_page(MutableBytes page) {
  std::array<std::byte, 1> present;
  HEADRACE_TRY(read(present));
  if (present[0] == std::byte{0}) return false;
  HEADRACE_TRY(read(page));
  return true;
}

Result<std::vector<std::byte>> SessionFileReader::read_framed() {
  std::array<std::byte, frame_bytes> bytes;
  HEADRACE_TRY(read(bytes));
  ByteReader frame(bytes);
  const auto length = frame.number<std::uint32_t>();
  const Digest128 checksum = frame.digest();
  if (length > framed_most || length > size_ - position_) return corrupt();
  std::vector<std::byte> body(length);
  HEADRACE_TRY(read(body));
  if (hash_bytes(body) != checksum) return corrupt();
  return body;
}

Result<void> SessionFileReader::read(MutableBytes bytes) {
  if (bytes.size() > size_ - position_) return corrupt();
  HEADRACE_TRY(file_->read_at(position_, {&bytes, 1}));
  position_ += bytes.size();
  return {};
}

}  // namespace headrace
