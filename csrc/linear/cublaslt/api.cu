// SPDX-License-Identifier: MIT
#include "linear/cublaslt/api.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace transformer_kernels::cuda::cublaslt {
namespace {

// Places to look for the library: by name, then where the CUDA toolkit has it.
std::vector<std::string> places() {
  const std::vector<std::string> names{"libcublasLt.so.13", "libcublasLt.so.12"};
  std::vector<std::string> found = names;
  const std::array<const char*, 3> homes{std::getenv("CUDA_HOME"), std::getenv("CUDA_PATH"),
                                         "/usr/local/cuda"};
  for (const char* home : homes) {
    if (home == nullptr) continue;
    for (const std::string& name : names) found.push_back(home + ("/lib64/" + name));
  }
  return found;
}

// A copy that the process has already, as PyTorch's, before any other: it is half a gigabyte. Never
// closed.
void* open_library() {
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    for (const std::string& place : places()) {
      void* const library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | only_loaded);
      if (library != nullptr) return library;
    }
  }
  return nullptr;
}

std::optional<Api> load() {
  void* const library = open_library();
  if (library == nullptr) return {};
  bool is_whole = true;
  const auto find = [&]<class Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    is_whole = is_whole && function != nullptr;
  };
  Api found{};
  find("cublasLtCreate", found.create);
  find("cublasLtMatmul", found.matmul);
  find("cublasLtMatmulAlgoGetHeuristic", found.matmul_algo_get_heuristic);
  find("cublasLtMatmulDescCreate", found.matmul_desc_create);
  find("cublasLtMatmulDescDestroy", found.matmul_desc_destroy);
  find("cublasLtMatmulDescSetAttribute", found.matmul_desc_set_attribute);
  find("cublasLtMatrixLayoutCreate", found.matrix_layout_create);
  find("cublasLtMatrixLayoutDestroy", found.matrix_layout_destroy);
  find("cublasLtMatmulPreferenceCreate", found.matmul_preference_create);
  find("cublasLtMatmulPreferenceDestroy", found.matmul_preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", found.matmul_preference_set_attribute);
  return is_whole ? std::optional(found) : std::nullopt;
}

}  // namespace

const Api* api() {
  static const std::optional<Api> found = load();
  return found ? &*found : nullptr;
}

}  // namespace transformer_kernels::cuda::cublaslt
