# SPDX-License-Identifier: MIT
"""Llama 2 and 3, Qwen 2 and 3 and Mistral, with readers of safetensors and GGUF."""
