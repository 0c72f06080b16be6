// One side of `lockstep bench store`: a server and its clients in one process, told over stdin what to
// measure.
//
// The same code drives ours and torch's; a Side says how to serve and how to call:
//
//   struct Side {
//     explicit Side(int clients);                   // starts a server for that many
//     std::unique_ptr<Client> connect();            // Client has set, get, add, check, wait, barrier
//     static std::string version();
//   };
//
// A line on stdin is a command, a line on stdout its answer:
//   open N            a new server with N clients              -> "ok"
//   join N            a new server; N clients come and meet    -> result
//   set|get|add|wait SECONDS                                   -> result
//   version           of the side's library                    -> the text
//   result = "result OPERATIONS SECONDS P50_US P99_US"
// Between commands the process sleeps in read(2). At the end of stdin it exits. A wrong answer of the store
// ends the process with a line on stderr.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::bench {

constexpr std::size_t kValueSize = 32;
constexpr int kKeysPerClient = 64;
constexpr int kSetsPerBatch = 64;

using BenchClock = std::chrono::steady_clock;

[[noreturn]] inline void wrong_answer(const std::string& what) {
  std::cerr << "store bench: " << what << std::endl;
  std::_Exit(1);
}

inline void expect(bool right, const char* what) {
  if (!right) wrong_answer(what);
}

struct Measured {
  std::uint64_t operations = 0;
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;

  std::string line() const {
    std::ostringstream out;
    out << "result " << operations << ' ' << seconds << ' ' << p50_us << ' ' << p99_us;
    return out.str();
  }
};

// What one thread has measured.
struct Samples {
  std::uint64_t operations = 0;
  std::vector<float> micros;  // per operation

  void add(BenchClock::time_point start, BenchClock::time_point end, int count) {
    operations += static_cast<std::uint64_t>(count);
    micros.push_back(std::chrono::duration<float, std::micro>(end - start).count() /
                     static_cast<float>(count));
  }
};

inline Measured merged(std::vector<Samples>& all, double seconds) {
  Measured measured{.seconds = seconds};
  std::vector<float> micros;
  for (const Samples& one : all) {
    measured.operations += one.operations;
    micros.insert(micros.end(), one.micros.begin(), one.micros.end());
  }
  if (micros.empty()) return measured;
  std::sort(micros.begin(), micros.end());
  measured.p50_us = micros[micros.size() / 2];
  measured.p99_us = micros[micros.size() * 99 / 100];
  return measured;
}

// Runs `body(index, end, samples)` on so many threads, all let go at once and told when to end.
using Body = std::function<void(int, BenchClock::time_point, Samples&)>;
inline Measured on_threads(int count, double seconds, const Body& body) {
  std::vector<Samples> samples(static_cast<std::size_t>(count));
  BenchClock::time_point begin;
  std::barrier start(count, [&]() noexcept { begin = BenchClock::now(); });
  std::vector<std::thread> threads;
  threads.reserve(samples.size());
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      Samples& own = samples[static_cast<std::size_t>(i)];
      own.micros.reserve(1U << 14);
      start.arrive_and_wait();
      body(i,
           begin + std::chrono::duration_cast<BenchClock::duration>(std::chrono::duration<double>(seconds)),
           own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return merged(samples, std::chrono::duration<double>(BenchClock::now() - begin).count());
}

inline std::string value_of(int client) {
  std::string value(kValueSize, 'v');
  const std::string digits = std::to_string(client);
  std::copy(digits.begin(), digits.end(), value.begin());
  return value;
}

template <typename Side>
class StorePeer {
 public:
  using Client = typename Side::Client;

  std::string run(const std::string& command) {
    std::istringstream in(command);
    std::string op;
    double amount = 0;
    in >> op >> amount;
    if (op == "version") return Side::version();
    if (op == "open") return open(static_cast<int>(amount));
    if (op == "join") return join(static_cast<int>(amount)).line();
    ++round_;
    if (op == "set") return set(amount).line();
    if (op == "get") return get(amount).line();
    if (op == "add") return add(amount).line();
    if (op == "wait") return wait(amount).line();
    wrong_answer("unknown command " + command);
  }

 private:
  std::string open(int count) {
    clients_.clear();
    side_.reset();
    side_ = std::make_unique<Side>(2 * count);
    for (int i = 0; i < count; ++i) clients_.push_back(side_->connect());
    partner_ = side_->connect();
    keys_.assign(static_cast<std::size_t>(count), {});
    for (int i = 0; i < count; ++i) {
      for (int k = 0; k < kKeysPerClient; ++k) {
        keys_[static_cast<std::size_t>(i)].push_back("bench/" + std::to_string(i) + "/" + std::to_string(k));
        client(i).set(key(i, k), value_of(i));
      }
      expect(client(i).check(key(i, kKeysPerClient - 1)), "a key that was set is not there");
    }
    added_ = 0;
    return "ok";
  }

  int clients() const { return static_cast<int>(clients_.size()); }
  Client& client(int i) { return *clients_[static_cast<std::size_t>(i)]; }
  const std::string& key(int i, int k) {
    return keys_[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)];
  }

  // Batches of sets, each ended by one round trip, after which all of them are done: neither side waits for
  // the answer to a single set.
  Measured set(double seconds) {
    return on_threads(clients(), seconds, [&](int i, BenchClock::time_point end, Samples& samples) {
      const std::string value = value_of(i);
      for (auto start = BenchClock::now(); start < end;) {
        for (int n = 0; n < kSetsPerBatch; ++n) client(i).set(key(i, n % kKeysPerClient), value);
        expect(client(i).check(key(i, kSetsPerBatch % kKeysPerClient)), "a key that was set is not there");
        const auto now = BenchClock::now();
        samples.add(start, now, kSetsPerBatch);
        start = now;
      }
    });
  }

  Measured get(double seconds) {
    return on_threads(clients(), seconds, [&](int i, BenchClock::time_point end, Samples& samples) {
      const std::string value = value_of(i);
      int n = 0;
      for (auto start = BenchClock::now(); start < end;) {
        expect(client(i).get(key(i, n++ % kKeysPerClient)) == value, "get gave another value than was set");
        const auto now = BenchClock::now();
        samples.add(start, now, 1);
        start = now;
      }
    });
  }

  // All on one key; the sum must be right.
  Measured add(double seconds) {
    const Measured measured =
        on_threads(clients(), seconds, [&](int i, BenchClock::time_point end, Samples& samples) {
          for (auto start = BenchClock::now(); start < end;) {
            expect(client(i).add("bench/counter", 1) > 0, "add gave no positive sum");
            const auto now = BenchClock::now();
            samples.add(start, now, 1);
            start = now;
          }
        });
    added_ += static_cast<std::int64_t>(measured.operations);
    expect(client(0).add("bench/counter", 0) == added_, "additions were lost");
    return measured;
  }

  // Pairs: each waits for the key that the other sets next. With one client a second one is its partner.
  Measured wait(double seconds) {
    const int pairs = std::max(1, clients() / 2);
    std::vector<std::atomic<int>> last_turns(static_cast<std::size_t>(pairs));
    for (auto& last_turn : last_turns) last_turn = -1;
    return on_threads(2 * pairs, seconds, [&](int i, BenchClock::time_point end, Samples& samples) {
      const int pair = i / 2;
      const bool leads = i % 2 == 0;
      Client& own = i < clients() ? client(i) : *partner_;
      const std::string prefix = "bench/wait/" + std::to_string(round_) + "/" + std::to_string(pair) + "/";
      const std::string value(1, 'x');
      auto& last_turn = last_turns[static_cast<std::size_t>(pair)];
      auto start = BenchClock::now();
      for (int turn = 0;; ++turn) {
        const std::string name = prefix + std::to_string(turn);
        if (leads) {
          // Before the key is set, so that the partner sees it and stops after the same turn.
          if (start >= end) last_turn = turn;
          own.set(name + "/to", value);
          own.wait(name + "/back");
        } else {
          own.wait(name + "/to");
          own.set(name + "/back", value);
        }
        const auto now = BenchClock::now();
        samples.add(start, now, 1);
        start = now;
        if (turn == last_turn) return;
      }
    });
  }

  // From the first connect until the last client has passed the store's own barrier.
  Measured join(int count) {
    clients_.clear();
    partner_.reset();
    side_.reset();
    side_ = std::make_unique<Side>(2 * count);
    std::vector<std::unique_ptr<Client>> joined(static_cast<std::size_t>(count));
    std::vector<BenchClock::time_point> passed(joined.size());
    std::atomic<int> came = 0;
    BenchClock::time_point begin;
    // The threads' own end does not count.
    Measured measured = on_threads(count, 0, [&](int i, BenchClock::time_point started, Samples& samples) {
      const auto index = static_cast<std::size_t>(i);
      if (i == 0) begin = started;
      const auto start = BenchClock::now();
      joined[index] = side_->connect();
      ++came;
      joined[index]->barrier("bench/here", count);
      passed[index] = BenchClock::now();
      expect(came == count, "a client passed the barrier before all had come");
      samples.add(start, passed[index], 1);
    });
    const auto end = *std::max_element(passed.begin(), passed.end());
    measured.seconds = std::chrono::duration<double>(end - begin).count();
    return measured;
  }

  std::unique_ptr<Side> side_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unique_ptr<Client> partner_;
  std::vector<std::vector<std::string>> keys_;
  std::int64_t added_ = 0;
  int round_ = 0;
};

template <typename Side>
int run_store_peer() {
  StorePeer<Side> peer;
  for (std::string command; std::getline(std::cin, command);) std::cout << peer.run(command) << std::endl;
  return 0;
}

}  // namespace lockstep::bench
