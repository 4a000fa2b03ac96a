#include "model/gguf_file.h"

#include <algorithm>
#include <cstring>

#include "base/no_memory.h"
#include "ggml.h"
#include "gguf.h"

namespace headrace {
namespace {

/// Catches what ggml's parser logs, so that the first complaint becomes our message. ggml's log
/// sink is process-wide: the previous one is put back.
class LogCapture {
 public:
  LogCapture() {
    text_.reserve(line_bytes);  // so that want of memory can be said
    ggml_log_get(&previous_, &previous_data_);
    ggml_log_set(append, this);
  }
  ~LogCapture() { ggml_log_set(previous_, previous_data_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::string first_line() const {
    std::string line = text_.substr(0, text_.find('\n'));
    const std::size_t colon = line.find(": ");  // ggml names its function first
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }

 private:
  static constexpr std::size_t line_bytes = 256;

  static void append(ggml_log_level, const char* text, void* self) {
    static_cast<void>(has_memory_for([&] { static_cast<LogCapture*>(self)->text_ += text; }));
  }
  ggml_log_callback previous_ = nullptr;
  void* previous_data_ = nullptr;
  std::string text_;
};

}  // namespace

void GgufFile::Free::operator()(gguf_context* context) const { gguf_free(context); }

Result<GgufFile> GgufFile::open(Bytes file, const std::string& path) {
  const auto corrupt = [&](const std::string& why) {
    return Error{ErrorCode::corrupt, "'" + path + "' " + why};
  };
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0) {
    return corrupt("is not a GGUF model file; give one that ends in .gguf");
  }
  GgufFile result;
  result.path_ = path;
  result.file_bytes_ = file.size();
  {
    const LogCapture log;
    result.context_.reset(
        gguf_init_from_buffer(file.data(), file.size(), {/*no_alloc=*/true, /*ctx=*/nullptr}));
    if (!result.context_) {
      const std::string detail = log.first_line();
      if (detail.find("bad_alloc") != std::string::npos) {
        return no_memory(ErrorCode::out_of_budget);
      }
      return corrupt("is damaged or cut short" +
                     (detail.empty() ? std::string() : " (" + detail + ")") +
                     "; get the file again");
    }
  }
  HEADRACE_TRY(result.read_tensors(file));
  return result;
}

Result<void> GgufFile::read_tensors(Bytes file) {
  const std::size_t data_offset = gguf_get_data_offset(context_.get());
  const std::int64_t count = gguf_get_n_tensors(context_.get());
  for (std::int64_t i = 0; i < count; ++i) {
    TensorInfo tensor;
    tensor.name = gguf_get_tensor_name(context_.get(), i);
    tensor.type = gguf_get_tensor_type(context_.get(), i);
    const std::int64_t* extents = gguf_get_tensor_ne(context_.get(), i);
    tensor.width = static_cast<std::uint64_t>(extents[0]);
    tensor.rows = static_cast<std::uint64_t>(extents[1] * extents[2] * extents[3]);
    const std::size_t size = gguf_get_tensor_size(context_.get(), i);
    const std::size_t offset = gguf_get_tensor_offset(context_.get(), i);
    if (data_offset > file.size() || offset > file.size() - data_offset ||
        size > file.size() - data_offset - offset) {
      return Error{ErrorCode::corrupt,
                   "'" + path_ + "' is cut short: tensor '" + tensor.name + "' ends at byte " +
                       std::to_string(data_offset + offset + size) + " and the file has " +
                       std::to_string(file.size()) + "; get the file again"};
    }
    tensor.bytes = file.subspan(data_offset + offset, size);
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Error GgufFile::wrong_type(const std::string& key, const char* wanted) const {
  return {ErrorCode::corrupt, "'" + path_ + "': the value of '" + key + "' is not " + wanted};
}

Result<std::optional<std::uint64_t>> GgufFile::get_unsigned(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) return std::optional<std::uint64_t>();
  const auto checked = [&](std::int64_t value) -> Result<std::optional<std::uint64_t>> {
    if (value < 0) return wrong_type(key, "a whole number from 0 on");
    return std::optional(static_cast<std::uint64_t>(value));
  };
  switch (gguf_get_kv_type(context_.get(), id)) {
    case GGUF_TYPE_UINT8:
      return checked(gguf_get_val_u8(context_.get(), id));
    case GGUF_TYPE_UINT16:
      return checked(gguf_get_val_u16(context_.get(), id));
    case GGUF_TYPE_UINT32:
      return checked(gguf_get_val_u32(context_.get(), id));
    case GGUF_TYPE_UINT64:
      return std::optional(gguf_get_val_u64(context_.get(), id));
    case GGUF_TYPE_INT8:
      return checked(gguf_get_val_i8(context_.get(), id));
    case GGUF_TYPE_INT16:
      return checked(gguf_get_val_i16(context_.get(), id));
    case GGUF_TYPE_INT32:
      return checked(gguf_get_val_i32(context_.get(), id));
    case GGUF_TYPE_INT64:
      return checked(gguf_get_val_i64(context_.get(), id));
    default:
      return wrong_type(key, "a whole number");
  }
}

Result<std::optional<double>> GgufFile::get_float(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) return std::optional<double>();
  switch (gguf_get_kv_type(context_.get(), id)) {
    case GGUF_TYPE_FLOAT32:
      return std::optional<double>(gguf_get_val_f32(context_.get(), id));
    case GGUF_TYPE_FLOAT64:
      return std::optional<double>(gguf_get_val_f64(context_.get(), id));
    default:
      return wrong_type(key, "a number");
  }
}

Result<std::optional<bool>> GgufFile::get_bool(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) return std::optional<bool>();
  if (gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_BOOL) return wrong_type(key, "a flag");
  return std::optional<bool>(gguf_get_val_bool(context_.get(), id));
}

Result<std::vector<std::uint64_t>> GgufFile::get_unsigned_array(const std::string& key) const {
  if (!is_array(key)) return wrong_type(key, "an array");
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  const std::size_t count = gguf_get_arr_n(context_.get(), id);
  std::vector<std::uint64_t> values(count);
  const auto read = [&]<typename T>(T) -> Result<std::vector<std::uint64_t>> {
    const T* data = static_cast<const T*>(gguf_get_arr_data(context_.get(), id));
    for (std::size_t i = 0; i < count; ++i) {
      if (data[i] < T{0}) return wrong_type(key, "an array of whole numbers from 0 on");
      values[i] = static_cast<std::uint64_t>(data[i]);
    }
    return values;
  };
  switch (gguf_get_arr_type(context_.get(), id)) {
    case GGUF_TYPE_BOOL:  // stored as bytes
    case GGUF_TYPE_UINT8:
      return read(std::uint8_t{});
    case GGUF_TYPE_INT32:
      return read(std::int32_t{});
    case GGUF_TYPE_UINT32:
      return read(std::uint32_t{});
    case GGUF_TYPE_INT64:
      return read(std::int64_t{});
    case GGUF_TYPE_UINT64:
      return read(std::uint64_t{});
    default:
      return wrong_type(key, "an array of whole numbers");
  }
}

Result<std::optional<std::string>> GgufFile::get_string(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  if (id < 0) return std::optional<std::string>();
  if (gguf_get_kv_type(context_.get(), id) != GGUF_TYPE_STRING) return wrong_type(key, "a text");
  return std::optional<std::string>(gguf_get_val_str(context_.get(), id));
}

Result<std::uint32_t> GgufFile::require_u32(const std::string& key) const {
  HEADRACE_TRY_ASSIGN(const std::optional<std::uint64_t> value, get_unsigned(key));
  if (!value) return Error{ErrorCode::corrupt, "'" + path_ + "' lacks the value '" + key + "'"};
  if (*value > 0xFFFFFFFFU) return wrong_type(key, "a 32-bit number");
  return static_cast<std::uint32_t>(*value);
}

Result<float> GgufFile::require_float(const std::string& key) const {
  HEADRACE_TRY_ASSIGN(const std::optional<double> value, get_float(key));
  if (!value) return Error{ErrorCode::corrupt, "'" + path_ + "' lacks the value '" + key + "'"};
  return static_cast<float>(*value);
}

Result<std::string> GgufFile::require_string(const std::string& key) const {
  HEADRACE_TRY_ASSIGN(std::optional<std::string> value, get_string(key));
  if (!value) return Error{ErrorCode::corrupt, "'" + path_ + "' lacks the value '" + key + "'"};
  return *std::move(value);
}

std::uint64_t GgufFile::array_length(const std::string& key) const {
  return is_array(key) ? gguf_get_arr_n(context_.get(), gguf_find_key(context_.get(), key.c_str()))
                       : 0;
}

bool GgufFile::is_array(const std::string& key) const {
  const std::int64_t id = gguf_find_key(context_.get(), key.c_str());
  return id >= 0 && gguf_get_kv_type(context_.get(), id) == GGUF_TYPE_ARRAY;
}

bool GgufFile::has_key(const std::string& key) const {
  return gguf_find_key(context_.get(), key.c_str()) >= 0;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace headrace
