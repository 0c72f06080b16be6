// Whether this build watches every access. Tests that go through very many cases go through fewer there.
#pragma once

namespace lockstep::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace lockstep::testing
