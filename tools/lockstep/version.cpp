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

// What this build was made with; empty if it was made without torch. The command itself does not link it.
constexpr std::string_view kLibtorchVersion = LOCKSTEP_LIBTORCH_VERSION;
constexpr std::string_view kLibtorchFolder = LOCKSTEP_LIBTORCH_FOLDER;

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

std::string libtorch_text() {
  if (kLibtorchVersion.empty()) return "none: this build was made without torch";
  return cat(kLibtorchVersion, " in ", kLibtorchFolder);
}

}  // namespace

launch::Finding libtorch_finding() {
  std::error_code ignored;
  const bool lost = !kLibtorchVersion.empty() && !std::filesystem::exists(kLibtorchFolder, ignored);
  return {.topic = "libtorch",
          .health = lost ? launch::Health::kWarning : launch::Health::kOk,
          .found = cat(libtorch_text(), kLibtorchVersion.empty() ? "" : ", which this build was made with",
                       lost ? "; it is not there any more" : ""),
          .advice = lost ? "Build Lockstep again, with the libtorch that there is now." : "",
          .facts = {{"version", std::string(kLibtorchVersion)}, {"folder", std::string(kLibtorchFolder)}}};
}

std::string version_text(const CommandContext& context) {
  const std::vector<std::string> helpers = torch_helpers(context);
  return cat("lockstep ", kVersion,                                                         //
             "\nwire version   ", base::kWireVersion,                                       //
             "\nbuild          ", kBuildType, ", ", compiler(),                             //
             "\nOpenSSL        ", openssl_version(),                                        //
             "\nhwloc API      ", hwloc_version(),                                          //
             "\nlibtorch       ", libtorch_text(),                                          //
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
