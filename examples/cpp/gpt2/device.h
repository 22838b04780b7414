// SPDX-License-Identifier: MIT
// Where the program computes: on the CPU or on a CUDA device. A device has memory, copies to and
// from that of the host, and the context that functions of the library take.
#pragma once

#include <transformer_kernels/context.h>

#include <cstddef>
#include <functional>
#include <stdexcept>

namespace gpt2 {

namespace tfk = transformer_kernels;

// The device that was asked for is not here.
class NoDevice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One thread at a time uses a device other than the CPU. Work on it is done in the order in which
// it is asked for, copies as well.
class Device {
 public:
  // The program has one of each type, for as long as it runs. Throws NoDevice.
  static Device& of(tfk::DeviceType type);
  virtual ~Device() = default;

  const tfk::Context& context() const { return context_; }

  // Zeros, aligned for any kernel. Throws where there is no more memory.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // From and to the host's memory, which is free when the call returns.
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;

  // Work that reads and writes the same memory at each call, as a function that does it with less
  // of the host's time where the device has a way to.
  virtual std::function<void()> repeated(std::function<void()> work) = 0;

 protected:
  tfk::Context context_;
};

}  // namespace gpt2
