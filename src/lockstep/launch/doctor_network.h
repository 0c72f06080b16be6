// The doctor's probes of the network. judge_* are pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/launch/doctor.h"

namespace lockstep::launch {

// `named` are those of LOCKSTEP_SOCKET_IFNAME, if any.
Finding judge_interfaces(const std::vector<base::Interface>& interfaces,
                         const std::vector<std::string>& named);
Finding check_interfaces(const std::vector<std::string>& named);

// How this host would reach `master` ("host" or "host:port"), and which of its addresses the other ranks
// would be told. Nothing is sent to the master; its name may be looked up.
Finding check_master(const std::string& master, const std::vector<std::string>& named,
                     const Deadline& deadline);

}  // namespace lockstep::launch
