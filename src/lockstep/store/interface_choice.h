// Which of this host's addresses the other ranks are told: the one that routes to the master, or one for each
// interface that the user names.
//
// Thread safety: choose_addresses is pure; own_addresses asks the kernel, from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/net.h"
#include "lockstep/base/status.h"

namespace lockstep::store {

// `towards_master` is this host's address on the way to the master, where there is one.
// - with names: one address of each, of the master's family where the interface has one (else IPv4 first);
//   an unknown name is an error that lists the ones there are, as is one that is down or has no address.
// - without: `towards_master`; else the first address of the first interface that is up and not loopback;
// else
//   127.0.0.1.
Result<std::vector<base::SocketAddress>> choose_addresses(
    const std::vector<base::Interface>& interfaces, const std::vector<std::string>& names,
    const std::optional<base::SocketAddress>& towards_master);

Result<std::vector<base::SocketAddress>> own_addresses(const std::vector<std::string>& names,
                                                       const std::optional<base::SocketAddress>& master);

}  // namespace lockstep::store
