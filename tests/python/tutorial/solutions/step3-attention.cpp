// SPDX-License-Identifier: MIT
void attention(const float* q, const float* k, const float* v, float* o, size_t heads,
               size_t time) {
  for (size_t row = 0; row < heads * time; ++row, q += kDim, o += kDim) {
    const size_t start = row / time * time;
    float largest = -INFINITY, sum = 0;
    std::fill(o, o + kDim, 0.f);
    for (size_t j = start; j <= row; ++j) {
      float score = 0;
      for (size_t d = 0; d < kDim; ++d) score += q[d] * k[j * kDim + d] / 8;
      const float most = std::max(largest, score);
      const float shrink = std::exp(largest - most), p = std::exp(score - most);
      largest = most;
      sum = sum * shrink + p;
      for (size_t d = 0; d < kDim; ++d) o[d] = o[d] * shrink + p * v[j * kDim + d];
    }
    for (size_t d = 0; d < kDim; ++d) o[d] /= sum;
  }
}
