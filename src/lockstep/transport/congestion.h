// Congestion control of a TCP socket: how fast it sends, and what it does about loss.
#pragma once

#include <string>

namespace lockstep::transport {

// `name` as Linux has it: "cubic", "bbr", "reno" and what else the kernel offers. Empty leaves the system's
// choice, but for bbr, which gives way to cubic: on a network of one's own bbr leaves half of the wire
// unused. What the system does not have or does not allow (net.ipv4.tcp_allowed_congestion_control) changes
// nothing.
void choose_congestion_control(int socket, const std::string& name);

}  // namespace lockstep::transport
