// SPDX-License-Identifier: MIT
// The safetensors format of Hugging Face: 8 bytes with the length of a header, the header in JSON
// (dtype, shape and place of each tensor, and strings under "__metadata__"), and the tensors'
// bytes.
#pragma once

#include <transformer_kernels/tensor.h>

#include <map>
#include <string>
#include <vector>

#include "files.h"
#include "tensor.h"

namespace gpt2 {

using Metadata = std::map<std::string, std::string>;

// A file whose header is read and checked whole; tensors are read when they are asked for. Throws
// std::runtime_error, which names the file and what is wrong with it.
class SafeTensors {
 public:
  explicit SafeTensors(const Path& path);

  bool has(const std::string& name) const { return entries_.contains(name); }
  const Metadata& metadata() const { return metadata_; }
  const std::string& metadata(const std::string& name) const;

  // Reads a tensor into contiguous memory of the host, of the same shape, converted to its dtype.
  void read(const std::string& name, const tfk::TensorView& to) const;

  // Whether the file is as write_safetensors() wrote it, to the last bit; throws where it is not.
  void verify() const;

 private:
  struct Entry {
    std::string dtype;
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // of the tensors' bytes
  };

  void parse(const std::string& header);
  void check_places(std::uint64_t bytes) const;
  [[noreturn]] void fail(const std::string& what) const;

  InputFile file_;
  std::string header_;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

struct NamedTensor {
  std::string name;
  tfk::TensorView view;  // float32 or bfloat16, contiguous, on any device
};

// Writes the file whole or not at all, with a checksum among the metadata.
void write_safetensors(const Path& path, const std::vector<NamedTensor>& tensors,
                       Metadata metadata);

}  // namespace gpt2
