// SPDX-License-Identifier: MIT
// Marks what the shared library exports; everything else in it is hidden.
#pragma once

#if defined(_WIN32)
#define TFK_API
#else
#define TFK_API __attribute__((visibility("default")))
#endif
