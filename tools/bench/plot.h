// A plot of times over sizes as an SVG picture, both axes logarithmic. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

struct PlotPoint {
  double x = 0;  // bytes
  double y = 0;  // microseconds

  bool operator==(const PlotPoint&) const = default;
};

struct PlotLine {
  std::string name = {};
  std::vector<PlotPoint> points = {};  // by ascending x
};

struct Plot {
  std::string title = {};
  std::vector<PlotLine> lines = {};
};

// To the line of that name, which is added if there is none. A second point at the same x is left out.
void add_point(Plot& plot, const std::string& line, const PlotPoint& point);

// Points that are not positive cannot be shown on such axes and are left out.
std::string svg_of(const Plot& plot);

}  // namespace lockstep::bench
