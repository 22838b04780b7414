// SPDX-License-Identifier: MIT
void log_softmax(const float* x, float* y, size_t rows, size_t cols) {
  on_all_threads(rows, [=](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      const float* in = x + row * cols;
      const float largest = *std::max_element(in, in + cols);
      Vector sums = {};
      for (size_t j = 0; j < cols; j += kWidth) sums += exponential(load(in + j) - largest);
      float sum = 0;
      for (size_t k = 0; k < kWidth; ++k) sum += sums[k];
      const float shift = largest + std::log(sum);
      for (size_t j = 0; j < cols; ++j) y[row * cols + j] = in[j] - shift;
    }
  });
}
