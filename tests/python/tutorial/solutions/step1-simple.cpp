// SPDX-License-Identifier: MIT
void swiglu(const float* gate, const float* up, float* y, size_t n) {
  on_all_threads(n, [=](size_t first, size_t last) {
    for (; first < last; first += kWidth) {
      const size_t bytes = std::min(kWidth, last - first) * sizeof(float);
      Vector g = {}, u = {};
      std::memcpy(&g, gate + first, bytes);
      std::memcpy(&u, up + first, bytes);
      const Vector result = g / (1.f + exponential(-g)) * u;
      std::memcpy(y + first, &result, bytes);
    }
  });
}
