// SPDX-License-Identifier: MIT
#include "safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace gpt2 {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // as the format's own library has it
constexpr std::size_t kMostDimensions = 8;
constexpr std::size_t kChunkBytes = std::size_t{1} << 22;
constexpr const char* kChecksum = "checksum";
const std::string kNoChecksum = "0000000000000000";

// Bytes of an element of each dtype that the format knows.
const std::map<std::string, std::uint64_t> kElementBytes = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};

const std::map<std::string, tfk::DType> kReadable = {
    {"F32", tfk::DType::kFloat32}, {"F16", tfk::DType::kFloat16}, {"BF16", tfk::DType::kBFloat16}};

std::string quoted_checksum(const std::string& sum) {
  return json(kChecksum).dump() + ':' + json(sum).dump();
}

std::string text_of(const Shape& shape) { return json(shape).dump(); }

// A parser's callback that notes keys which an object has twice: the value of the last would win.
class Keys {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) seen_[depth + 1].clear();
    if (event == json::parse_event_t::key && !seen_[depth].insert(parsed).second) {
      throw std::runtime_error("the header names " + parsed.dump() + " twice");
    }
    return true;
  }

 private:
  std::map<int, std::set<std::string>> seen_;
};

std::uint64_t bytes_of(const std::string& dtype, const Shape& shape) {
  std::uint64_t bytes = kElementBytes.at(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      throw std::runtime_error("a shape of " + text_of(shape) + " is too large");
    }
  }
  return bytes;
}

}  // namespace

void SafeTensors::fail(const std::string& what) const {
  throw std::runtime_error(file_.path().string() + ": " + what);
}

SafeTensors::SafeTensors(const Path& path) : file_(path) {
  std::uint64_t length = 0;
  if (file_.size() < sizeof(length)) fail("is truncated: no safetensors file");
  file_.read(0, &length, sizeof(length));
  if (length > std::min(kMostHeaderBytes, file_.size() - sizeof(length))) {
    fail("is no safetensors file: a header of " + std::to_string(length) + " bytes");
  }
  header_.resize(length);
  file_.read(sizeof(length), header_.data(), length);
  try {
    parse(header_);
  } catch (const std::exception& error) {
    fail(std::string("is no safetensors file: ") + error.what());
  }
  check_places(file_.size() - sizeof(length) - length);
}

void SafeTensors::parse(const std::string& header) {
  Keys keys;
  const json parsed = json::parse(header, keys);
  for (const auto& [name, value] : parsed.get_ref<const json::object_t&>()) {
    if (name == "__metadata__") {
      metadata_ = value.get<Metadata>();
      continue;
    }
    Entry entry;
    entry.dtype = value.at("dtype").get<std::string>();
    if (!kElementBytes.contains(entry.dtype)) {
      throw std::runtime_error(name + " has the unknown dtype " + entry.dtype);
    }
    const json& shape = value.at("shape");
    const json& places = value.at("data_offsets");
    if (!shape.is_array() || shape.size() > kMostDimensions || !places.is_array() ||
        places.size() != 2) {
      throw std::runtime_error(name + " has no shape or no place");
    }
    for (const json* numbers : {&shape, &places}) {
      for (const json& number : *numbers) {
        if (!number.is_number_unsigned() || number.get<std::uint64_t>() > INT64_MAX) {
          throw std::runtime_error(name + " has the size or place " + number.dump());
        }
      }
    }
    entry.shape = shape.get<Shape>();
    entry.begin = places[0].get<std::uint64_t>();
    entry.end = places[1].get<std::uint64_t>();
    if (entry.end < entry.begin || entry.end - entry.begin != bytes_of(entry.dtype, entry.shape)) {
      throw std::runtime_error(name + " of shape " + text_of(entry.shape) + " and dtype " +
                               entry.dtype + " does not have its bytes from " + places[0].dump() +
                               " to " + places[1].dump());
    }
    entries_.emplace(name, std::move(entry));
  }
}

// The tensors fill the bytes behind the header: none overlaps another, and there is no gap.
void SafeTensors::check_places(std::uint64_t bytes) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, entry] : entries_) places.emplace_back(entry.begin, entry.end);
  std::sort(places.begin(), places.end());
  std::uint64_t filled = 0;
  for (const auto& [begin, end] : places) {
    if (begin != filled) fail("has tensors that overlap, or a gap between tensors");
    filled = end;
  }
  if (filled != bytes) {
    fail("has " + std::to_string(bytes) + " bytes of tensors, its header says " +
         std::to_string(filled));
  }
}

const std::string& SafeTensors::metadata(const std::string& name) const {
  const auto found = metadata_.find(name);
  if (found == metadata_.end()) fail("has no metadata " + name);
  return found->second;
}

void SafeTensors::read(const std::string& name, const tfk::TensorView& to) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail("has no tensor " + name);
  const Entry& entry = found->second;
  if (!kReadable.contains(entry.dtype)) {
    fail(name + " is " + entry.dtype + ", expected F32, F16 or BF16");
  }
  if (entry.shape != shape_of(to)) {
    fail(name + " has shape " + text_of(entry.shape) + ", expected " + text_of(shape_of(to)));
  }
  const tfk::DType dtype = kReadable.at(entry.dtype);
  const std::uint64_t size = tfk::size_of(dtype);
  std::vector<std::byte> chunk(kChunkBytes);
  auto* next = static_cast<std::byte*>(to.data);
  for (std::uint64_t place = entry.begin; place < entry.end;) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kChunkBytes, entry.end - place);
    file_.read(sizeof(std::uint64_t) + header_.size() + place, chunk.data(), bytes);
    convert(chunk.data(), dtype, next, to.dtype, static_cast<std::int64_t>(bytes / size));
    next += bytes / size * tfk::size_of(to.dtype);
    place += bytes;
  }
}

void SafeTensors::verify() const {
  const std::string written = metadata(kChecksum);
  std::string header = header_;
  const std::size_t place = header.find(quoted_checksum(written));
  if (written.size() != kNoChecksum.size() || place == std::string::npos) {
    fail("is damaged: its checksum is no checksum");
  }
  // The sum was taken while zeros stood in its place.
  header.replace(place, quoted_checksum(written).size(), quoted_checksum(kNoChecksum));
  Checksum sum;
  sum.add(std::as_bytes(std::span(header)));
  std::vector<std::byte> chunk(kChunkBytes);
  for (std::uint64_t offset = sizeof(std::uint64_t) + header.size(); offset < file_.size();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kChunkBytes, file_.size() - offset);
    file_.read(offset, chunk.data(), bytes);
    sum.add(std::span(chunk).first(bytes));
    offset += bytes;
  }
  if (sum.hex() != written) fail("is damaged: its checksum differs");
}

void write_safetensors(const Path& path, const std::vector<NamedTensor>& tensors,
                       Metadata metadata) {
  metadata[kChecksum] = kNoChecksum;
  json header;
  header["__metadata__"] = metadata;
  std::uint64_t place = 0;
  for (const auto& [name, view] : tensors) {
    const std::string dtype = view.dtype == tfk::DType::kFloat32 ? "F32" : "BF16";
    const std::uint64_t end = place + bytes_of(view);
    header[name] = {{"dtype", dtype}, {"shape", shape_of(view)}, {"data_offsets", {place, end}}};
    place = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // readers may want aligned tensors

  Checksum sum;
  sum.add(std::as_bytes(std::span(text)));
  for (const auto& [name, view] : tensors) {
    const OnHost host(view);
    sum.add({static_cast<const std::byte*>(host.view().data), bytes_of(view)});
  }
  text.replace(text.find(quoted_checksum(kNoChecksum)), quoted_checksum(kNoChecksum).size(),
               quoted_checksum(sum.hex()));

  const std::uint64_t length = text.size();
  OutputFile file(path);
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (const auto& [name, view] : tensors) {
    const OnHost host(view);
    file.write(host.view().data, bytes_of(view));
  }
  file.commit();
}

}  // namespace gpt2
