// SPDX-License-Identifier: MIT
#include "parameters.h"

#include <cmath>
#include <random>
#include <stdexcept>

#include "llmc.h"

namespace gpt2 {
namespace {

constexpr float kDeviation = 0.02f;  // of GPT-2's first weights
constexpr std::int64_t kCudaRows = 128;

// The name that a safetensors file has for a parameter: saved with or without a language model
// around it.
std::string stored_name(const SafeTensors& file, const std::string& name) {
  const std::string longer = "transformer." + name;
  return file.has(longer) ? longer : name;
}

Path weights_of(const Path& model) {
  return std::filesystem::is_directory(model) ? model / "model.safetensors" : model;
}

// The smallest element has two bytes; memory is taken for no more than a file can fill.
void check_size(const Path& path, const Config& config) {
  const auto parameters = static_cast<std::uint64_t>(parameter_count(config));
  if (InputFile(path).size() / 2 < parameters) {
    throw std::runtime_error(path.string() + ": is too small for the " +
                             std::to_string(parameters) + " parameters of its configuration");
  }
}

// Products on a CUDA device want rows of logits that are aligned: GPT-2's 50257 are not.
std::int64_t rows_of_head(const Config& config, const Device& device) {
  const bool is_cuda = device.context().device.type == tfk::DeviceType::kCuda;
  const std::int64_t multiple = is_cuda ? kCudaRows : 1;
  return (config.vocabulary + multiple - 1) / multiple * multiple;
}

}  // namespace

Parameters::Parameters(const Config& config, tfk::DType dtype, Device& device)
    : layers(config.layers) {
  using tfk::DType;
  const std::int64_t c = config.channels;
  const auto add = [&](const std::string& name, tfk::TensorView& view, DType type,
                       const Shape& shape) {
    view = memory_.emplace_back(type, shape, device).view();
    list_.push_back({name, view});
  };
  const auto add_pair = [&](const std::string& name, tfk::TensorView& weight, tfk::TensorView& bias,
                            const Shape& shape) {
    add(name + ".weight", weight, shape.size() == 2 ? dtype : DType::kFloat32, shape);
    add(name + ".bias", bias, DType::kFloat32, {shape.back()});
  };
  head = memory_.emplace_back(dtype, Shape{rows_of_head(config, device), c}, device).view();
  wte = part_of(head, 0, config.vocabulary);
  list_.push_back({"wte.weight", wte});
  add("wpe.weight", wpe, DType::kFloat32, {config.positions, c});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    LayerParameters& l = layers[i];
    const std::string layer = "h." + std::to_string(i) + '.';
    add_pair(layer + "ln_1", l.ln_1_weight, l.ln_1_bias, {c});
    add_pair(layer + "attn.c_attn", l.attn_weight, l.attn_bias, {c, 3 * c});
    add_pair(layer + "attn.c_proj", l.proj_weight, l.proj_bias, {c, c});
    add_pair(layer + "ln_2", l.ln_2_weight, l.ln_2_bias, {c});
    add_pair(layer + "mlp.c_fc", l.fc_weight, l.fc_bias, {c, 4 * c});
    add_pair(layer + "mlp.c_proj", l.fc_proj_weight, l.fc_proj_bias, {4 * c, c});
  }
  add_pair("ln_f", ln_f_weight, ln_f_bias, {c});
}

Config read_config(const Path& model) {
  if (!std::filesystem::is_directory(model) && is_llmc_checkpoint(model)) {
    return read_llmc_config(model);
  }
  const Path path = weights_of(model).parent_path() / "config.json";
  try {
    return parse_config(read_text(path));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

namespace {

Parameters read_on_host(const Path& model, const Config& config, tfk::DType dtype) {
  const Path path = weights_of(model);
  check_size(path, config);
  if (is_llmc_checkpoint(path)) {
    Parameters parameters(config, dtype);
    read_llmc_parameters(path, config, parameters);
    return parameters;
  }
  const SafeTensors file(path);
  Parameters parameters(config, dtype);
  for (const auto& [name, view] : parameters.list()) file.read(stored_name(file, name), view);
  return parameters;
}

}  // namespace

Parameters read_parameters(const Path& model, const Config& config, tfk::DType dtype,
                           Device& device) {
  Parameters read = read_on_host(model, config, dtype);
  if (device.context().device.type == tfk::DeviceType::kCpu) return read;
  Parameters parameters(config, dtype, device);
  copy_parameters(read.list(), parameters.list());
  return parameters;
}

Parameters random_parameters(const Config& config, std::uint64_t seed) {
  Parameters parameters(config, tfk::DType::kFloat32);
  std::mt19937_64 engine(seed);
  const float residual = kDeviation / std::sqrt(2 * static_cast<float>(config.layers));
  for (const auto& [name, view] : parameters.list()) {
    std::normal_distribution<float> normal(0,
                                           name.ends_with("c_proj.weight") ? residual : kDeviation);
    const std::span values(static_cast<float*>(view.data), view.numel());
    for (float& value : values) {
      value = name.ends_with(".bias") ? 0 : view.rank == 1 ? 1 : normal(engine);
    }
  }
  return parameters;
}

void copy_parameters(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const tfk::TensorView &source = from[i].view, &target = to[i].view;
    if (source.data == target.data) continue;
    const OnHost numbers(source);
    const Tensor rounded(target.dtype, shape_of(target));
    convert(numbers.view().data, source.dtype, rounded.view().data, target.dtype, source.numel());
    write(target, rounded.view().data);
  }
}

void write_model(const Path& directory, const Config& config, std::vector<NamedTensor> weights) {
  for (NamedTensor& tensor : weights) tensor.name = "transformer." + tensor.name;
  write_text(directory / "config.json", text_of(config));
  write_safetensors(directory / "model.safetensors", weights, {{"format", "pt"}});
}

}  // namespace gpt2
