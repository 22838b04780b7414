// SPDX-License-Identifier: MIT
// Marks the names that the shared library exports; all others in it are hidden.
#pragma once

#if defined(_WIN32)
#define TFK_API
#else
#define TFK_API __attribute__((visibility("default")))
#endif
