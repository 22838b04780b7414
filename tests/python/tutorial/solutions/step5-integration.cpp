// SPDX-License-Identifier: MIT
inline Vector value(Vector x) { return x / (1.f + exponential(-1.702f * x)); }

inline Vector slope(Vector x) {
  x = x < -60.f ? Vector{} - 60.f : x;
  const Vector s = 1.f / (1.f + exponential(-1.702f * x));
  return s + 1.702f * x * s * (1.f - s);
}
