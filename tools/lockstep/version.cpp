#include "tools/lockstep/version.h"

#include <hwloc.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/handshake.h"
#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

constexpr const char* kVersion = LOCKSTEP_VERSION;
constexpr const char* kBuildType = LOCKSTEP_BUILD_TYPE;

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

// The library that was loaded, which need not be the one it was built with.
std::string hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return cat(version >> 16, ".", (version >> 8) & 0xff, ".", version & 0xff);
}

std::string openssl_version() { return OpenSSL_version(OPENSSL_VERSION_STRING); }

// The helpers that link libtorch; their names begin with "torch_".
std::vector<std::string> torch_helpers(const CommandContext& context) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(context.libexec(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("torch_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string version_text(const CommandContext& context) {
  const std::vector<std::string> helpers = torch_helpers(context);
  return cat("lockstep ", kVersion,                                                         //
             "\nwire version   ", base::kWireVersion,                                       //
             "\nbuild          ", kBuildType, ", ", compiler(),                             //
             "\nOpenSSL        ", openssl_version(),                                        //
             "\nhwloc API      ", hwloc_version(),                                          //
             "\ntorch helpers  ", helpers.empty() ? "not installed" : base::join(helpers),  //
             helpers.empty() ? "" : cat(" (", context.libexec().string(), ")"));
}

launch::Finding version_finding(const CommandContext& context) {
  const bool helpers = !torch_helpers(context).empty();
  return {.topic = "lockstep",
          .found = cat(kVersion, ", wire version ", base::kWireVersion, ", ", kBuildType, ", OpenSSL ",
                       openssl_version(), ", hwloc API ", hwloc_version(), ", torch helpers ",
                       helpers ? "installed" : "not installed"),
          .facts = {{"version", std::string(kVersion)},
                    {"wire_version", std::int64_t{base::kWireVersion}},
                    {"build_type", std::string(kBuildType)},
                    {"compiler", compiler()},
                    {"openssl", openssl_version()},
                    {"hwloc_api", hwloc_version()},
                    {"torch_helpers", helpers}}};
}

}  // namespace lockstep::tools
