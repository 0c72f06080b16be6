// A reduction along a chain of hosts, for layouts in which the ranks of a host follow each other.
//
// Hosts 0..H-1; the first L ranks of each host are lanes, L being the fewest ranks that any host has. Lane i
// folds slice i of every window:
//   up      host 0 folds its ranks' elements to a carry, which goes up; every host folds its own ranks onto
//   the
//           carry that comes, and the last one makes the result of it.
//   back    the result goes down again, to host `until`.
//   share   inside a host, the lanes' slices are shown to all ranks.
// A slice travels in chunks, so that all hosts work at the same time. Where every host has one rank a window
// is all there is, and nothing is staged; else it is what the Board stages. In an all_reduce, on a host where
// the buffers of all ranks are resident, the windows follow each other without a pause, and lanes write the
// result to all buffers themselves. Bytes: S per host and direction at the ends, twice that in between, if
// all of it goes back; a carry of 16-bit floats counts twice, but where it may be rounded. Scratch: kAhead
// chunks.
#pragma once

#include <vector>

#include "lockstep/collective/local_round.h"
#include "lockstep/collective/slices.h"
#include "lockstep/collective/spanning.h"

namespace lockstep::collective {

class Chain {
 public:
  // What this rank takes of the result: the bytes that begin `at` there. They may be those of the input.
  struct Share {
    ByteSpan bytes;
    std::size_t at = 0;
  };

  // `inputs` follow each other. Where every host has one rank there is one, and a share is all or nothing.
  Chain(Spanning& spanning, std::span<const ByteView> inputs, Share share, int until);
  Status run();

 private:
  using Ticket = transport::link::Links::Ticket;

  // Elements that travel together: where they lie in the sources, and in the result.
  struct Piece {
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t count = 0;
  };

  std::size_t window() const;  // bytes
  // Copies what the inputs have at `at`.
  void stage(ByteSpan to, std::size_t at) const;
  std::vector<Piece> pieces_of(Slice slice, std::size_t from, std::size_t to) const;
  Result<std::vector<Exposed>> expose(LocalRounds& rounds, std::size_t at, std::size_t size);
  Status run_direct(LocalRounds& rounds, std::span<const Exposed> inputs);
  Status run_window(LocalRounds& rounds, std::span<const Exposed> inputs, std::size_t at, std::size_t size);
  // Folds the pieces of the sources along the chain; the result lies in `result`, which is empty where it
  // does not come by, and is copied to the same places of the `others`.
  Status run_lane(std::span<const std::byte* const> sources, std::span<const double> factors, ByteSpan result,
                  std::span<std::byte* const> others, const std::vector<Piece>& pieces);

  Spanning& spanning_;
  transport::link::Links& links_;
  const std::span<const ByteView> inputs_;
  const ByteView input_;  // all of it, if it lies in one piece
  const std::size_t size_;
  const Share share_;
  const int until_;
  const int hosts_;
  const std::size_t element_;
  const std::size_t carry_;  // size of one running value
  const std::size_t chunk_;  // elements
  int lanes_ = 0;
  int previous_ = -1;  // our lane on the host before, and on the next
  int next_ = -1;
};

}  // namespace lockstep::collective
