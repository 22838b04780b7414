// SPDX-License-Identifier: MIT
void layer(const float* a, const float* b, const float* bias, float* c, size_t m, size_t n,
           size_t k) {
  on_all_threads(n / kCols, [=](size_t first, size_t last) {
    for (size_t j = first * kCols; j < last * kCols; j += kCols) {
      const std::vector<float> panel = packed(b + j * k, k);
      for (size_t i = 0; i < m; i += kRows) {
        const Sums sums = multiply(a + i * k, panel.data(), k);
        for (size_t r = 0; r < kRows; ++r)
          for (size_t v = 0; v < kVectors; ++v) {
            Vector x;
            std::memcpy(&x, bias + j + v * kWidth, sizeof x);
            x += sums.of[r][v];
            x = x > 0.f ? x * x : 0.f * x;
            std::memcpy(c + (i + r) * n + j + v * kWidth, &x, sizeof x);
          }
      }
    }
  });
}
