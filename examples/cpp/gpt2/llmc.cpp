// SPDX-License-Identifier: MIT
#include "llmc.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace gpt2 {
namespace {

constexpr std::int32_t kCheckpointMagic = 20240326, kTokensMagic = 20240520;
constexpr std::int32_t kFloat32Version = 3, kBFloat16Version = 5, kTokensVersion = 1;

struct Header {
  // A checkpoint has magic, version, positions, vocabulary, layers, heads, channels, and the rows
  // of wte with its padding; a file of tokens has magic, version, and how many they are.
  std::array<std::int32_t, 256> numbers{};

  Config config() const {
    return {.vocabulary = numbers[3],
            .positions = numbers[2],
            .channels = numbers[6],
            .layers = numbers[4],
            .heads = numbers[5]};
  }
};

[[noreturn]] void fail(const InputFile& file, const std::string& what) {
  throw std::runtime_error(file.path().string() + ": " + what);
}

Header header_of(const InputFile& file) {
  Header header;
  file.read(0, header.numbers.data(), sizeof(header.numbers));
  return header;
}

bool begins_with(const Path& path, std::int32_t magic) {
  const InputFile file(path);
  std::int32_t number = 0;
  if (file.size() >= sizeof(number)) file.read(0, &number, sizeof(number));
  return number == magic;
}

// Reads the tensors of a checkpoint one behind the other.
class Reader {
 public:
  explicit Reader(const Path& path) : file_(path) {
    const Header header = header_of(file_);
    const std::int32_t version = header.numbers[1];
    if (version != kFloat32Version && version != kBFloat16Version) {
      fail(file_, "is a checkpoint of version " + std::to_string(version) + ", expected 3 or 5");
    }
    dtype_ = version == kFloat32Version ? tfk::DType::kFloat32 : tfk::DType::kBFloat16;
    padding_ = std::int64_t{header.numbers[7]} - header.numbers[3];
    try {
      check(header.config());
    } catch (const std::runtime_error& error) {
      fail(file_, error.what());
    }
    if (padding_ < 0) fail(file_, "pads its vocabulary to fewer tokens than it has");
  }

  std::int64_t padding() const { return padding_; }

  void read(const tfk::TensorView& to) {
    const std::vector<std::byte> bytes = next(to.numel());
    convert(bytes.data(), dtype_, to.data, to.dtype, to.numel());
  }

  // A matrix (outputs, inputs) becomes one of (inputs, outputs).
  void read_transposed(const tfk::TensorView& to) {
    const std::int64_t inputs = to.sizes[0], outputs = to.sizes[1];
    const std::int64_t size = tfk::size_of(to.dtype);
    Tensor matrix(to.dtype, {outputs, inputs});
    read(matrix.view());
    const auto* from = static_cast<const std::byte*>(matrix.view().data);
    auto* out = static_cast<std::byte*>(to.data);
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t o = 0; o < outputs; ++o, out += size) {
        std::memcpy(out, from + (o * inputs + i) * size, size);
      }
    }
  }

  void skip(std::int64_t count) { place_ += count * tfk::size_of(dtype_); }

  void finish() const {
    if (place_ != file_.size()) fail(file_, "is longer than its sizes say");
  }

 private:
  std::vector<std::byte> next(std::int64_t count) {
    const std::uint64_t size = count * tfk::size_of(dtype_);
    if (place_ > file_.size() || size > file_.size() - place_) fail(file_, "is truncated");
    std::vector<std::byte> bytes(size);
    file_.read(place_, bytes.data(), bytes.size());
    place_ += bytes.size();
    return bytes;
  }

  InputFile file_;
  tfk::DType dtype_;
  std::int64_t padding_;
  std::uint64_t place_ = sizeof(Header);
};

}  // namespace

bool is_llmc_checkpoint(const Path& path) { return begins_with(path, kCheckpointMagic); }

Config read_llmc_config(const Path& path) {
  const Config config = header_of(InputFile(path)).config();
  check(config);
  return config;
}

void read_llmc_parameters(const Path& path, const Config& config, Parameters& parameters) {
  Reader reader(path);
  reader.read(parameters.wte);
  reader.skip(reader.padding() * config.channels);
  reader.read(parameters.wpe);
  // Each parameter of all layers, then the next one.
  using Member = tfk::TensorView LayerParameters::*;
  using L = LayerParameters;
  for (const Member member : {&L::ln_1_weight, &L::ln_1_bias, &L::attn_weight, &L::attn_bias,
                              &L::proj_weight, &L::proj_bias, &L::ln_2_weight, &L::ln_2_bias,
                              &L::fc_weight, &L::fc_bias, &L::fc_proj_weight, &L::fc_proj_bias}) {
    for (LayerParameters& layer : parameters.layers) {
      const tfk::TensorView& to = layer.*member;
      to.rank == 2 ? reader.read_transposed(to) : reader.read(to);
    }
  }
  reader.read(parameters.ln_f_weight);
  reader.read(parameters.ln_f_bias);
  reader.finish();
}

bool is_llmc_tokens(const Path& path) { return begins_with(path, kTokensMagic); }

std::vector<std::int32_t> read_llmc_tokens(const Path& path) {
  const InputFile file(path);
  const Header header = header_of(file);
  const std::int64_t count = header.numbers[2];
  if (header.numbers[1] != kTokensVersion) {
    fail(file, "has tokens of version " + std::to_string(header.numbers[1]) + ", expected 1");
  }
  if (count < 0 || file.size() - sizeof(header) != count * sizeof(std::uint16_t)) {
    fail(file, "does not hold the " + std::to_string(count) + " tokens that its header says");
  }
  std::vector<std::uint16_t> tokens(count);
  file.read(sizeof(header), tokens.data(), count * sizeof(std::uint16_t));
  return std::vector<std::int32_t>(tokens.begin(), tokens.end());
}

void write_llmc_tokens(const Path& path, std::span<const std::int32_t> tokens) {
  constexpr std::int32_t kMostTokens = 1 << 30, kLargest = 65535;
  if (tokens.empty() || tokens.size() > kMostTokens ||
      *std::max_element(tokens.begin(), tokens.end()) > kLargest) {
    throw std::runtime_error(path.string() +
                             ": cannot hold no tokens, so many, or such large ones");
  }
  Header header;
  header.numbers = {kTokensMagic, kTokensVersion, static_cast<std::int32_t>(tokens.size())};
  const std::vector<std::uint16_t> words(tokens.begin(), tokens.end());
  OutputFile file(path);
  file.write(header.numbers.data(), sizeof(header));
  file.write(words.data(), words.size() * sizeof(words[0]));
  file.commit();
}

}  // namespace gpt2
