// Two pictures of a training run, as SVG files: how the loss went down, and what happened in one step.
#pragma once

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/ddp/observer.h"

namespace pictures {

inline std::string svg(int width, int height, const std::string& content) {
  const std::string size =
      "width=\"" + std::to_string(width) + "\" height=\"" + std::to_string(height) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
         " font-family=\"sans-serif\" font-size=\"12\"><rect " + size + " fill=\"white\"/>" + content +
         "</svg>\n";
}

inline void write(const std::string& path, const std::string& picture) {
  std::ofstream file(path);
  if (!(file << picture << std::flush)) throw std::runtime_error("cannot write the picture " + path);
}

inline std::string text(double x, double y, const std::string& words) {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\">" + words + "</text>";
}

inline void write_loss(const std::string& path, const std::vector<double>& losses) {
  constexpr double kLeft = 50, kTop = 30, kWidth = 600, kHeight = 260;
  const double most = *std::max_element(losses.begin(), losses.end());
  std::string points;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double x = kLeft + kWidth * static_cast<double>(i) / static_cast<double>(losses.size());
    points += std::to_string(x) + "," + std::to_string(kTop + kHeight * (1 - losses[i] / most)) + " ";
  }
  write(path, svg(700, 340,
                  text(kLeft, 20, "loss by step, mean over all ranks; highest " + std::to_string(most)) +
                      "<polyline fill=\"none\" stroke=\"#1f77b4\" points=\"" + points + "\"/>" +
                      "<path stroke=\"black\" fill=\"none\" d=\"M50 30V290H650\"/>" + text(kLeft, 310, "0") +
                      text(620, 310, std::to_string(losses.size()))));
}

// The events of one pass: a line for forward and backward, and one for each bucket, from launch to done.
inline void write_timeline(const std::string& path, const std::vector<lockstep::PassEvent>& events) {
  using lockstep::PassPhase;
  constexpr double kLeft = 90, kWidth = 580, kRow = 22;
  const auto from = events.front().at;
  const double all = std::chrono::duration<double>(events.back().at - from).count();
  const auto x = [&](auto at) {
    return kLeft + kWidth * std::chrono::duration<double>(at - from).count() / all;
  };
  std::string content = text(10, 20, "one step of rank 0, " + std::to_string(all * 1e3) + " ms");
  double rows = 2;
  const auto bar = [&](double row, auto begin, auto end, const std::string& color, const std::string& name) {
    content += text(10, 40 + kRow * row + 12, name) + "<rect x=\"" + std::to_string(x(begin)) + "\" y=\"" +
               std::to_string(40 + kRow * row) + "\" height=\"16\" width=\"" +
               std::to_string(std::max(1.0, x(end) - x(begin))) + "\" fill=\"" + color + "\"/>";
  };
  auto backward = from;
  std::vector<lockstep::PassEvent> launched;
  for (const lockstep::PassEvent& event : events) {
    if (event.phase == PassPhase::kBackward) {
      bar(0, from, event.at, "#2ca02c", "forward");
      backward = event.at;
    } else if (event.phase == PassPhase::kLaunched) {
      launched.push_back(event);
    } else if (event.phase == PassPhase::kDone) {
      const auto& begin = launched.at(event.index);
      bar(2 + static_cast<double>(event.index), begin.at, event.at, "#ff7f0e",
          "bucket " + std::to_string(event.index));
      rows = std::max(rows, 3 + static_cast<double>(event.index));
    } else if (event.phase == PassPhase::kWaited && event.index == 0) {
      bar(1, backward, event.at, "#1f77b4", "backward");
    }
  }
  write(path, svg(700, static_cast<int>(60 + kRow * rows), content));
}

}  // namespace pictures
