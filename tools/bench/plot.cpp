#include "tools/bench/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/base/types.h"
#include "tools/bench/output.h"

namespace lockstep::bench {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 440;
constexpr double kLeft = 80;
constexpr double kRight = 170;  // the names of the lines
constexpr double kTop = 40;
constexpr double kBottom = 55;
// Told apart by people who do not see red and green as different (Okabe and Ito).
constexpr std::array kColours = {"#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};

bool is_shown(const PlotPoint& point) { return point.x > 0 && point.y > 0; }

// One axis: from the logarithm of a value to a place on the page.
struct Axis {
  double low = 0;  // logarithms
  double high = 1;
  double from = 0;  // on the page
  double to = 1;

  double place(double log) const {
    const double span = high > low ? high - low : 1;
    return from + (to - from) * (log - low) / span;
  }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

struct TextStyle {
  const char* anchor = "middle";
  const char* colour = "#333";
};

std::string text_at(double x, double y, const std::string& text, const TextStyle& style) {
  return cat("<text x=\"", rounded(x, 1), "\" y=\"", rounded(y, 1), "\" text-anchor=\"", style.anchor,
             "\" fill=\"", style.colour, "\">", escaped(text), "</text>\n");
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return cat("<line x1=\"", rounded(x1, 1), "\" y1=\"", rounded(y1, 1), "\" x2=\"", rounded(x2, 1),
             "\" y2=\"", rounded(y2, 1), "\" stroke=\"#ddd\"/>\n");
}

// Microseconds as a person writes them: "10 us", "1 ms".
std::string time_text(double power_of_ten) {
  const auto nanos = static_cast<std::int64_t>(std::llround(std::pow(10, power_of_ten + 3)));
  if (nanos >= 1'000'000'000) return cat(nanos / 1'000'000'000, " s");
  if (nanos >= 1'000'000) return cat(nanos / 1'000'000, " ms");
  if (nanos >= 1'000) return cat(nanos / 1'000, " us");
  return cat(nanos, " ns");
}

std::string size_text(double power_of_two) {
  const auto bytes = std::uint64_t{1} << static_cast<unsigned>(power_of_two);
  if (bytes >= (1U << 30U)) return cat(bytes >> 30U, " GiB");
  if (bytes >= (1U << 20U)) return cat(bytes >> 20U, " MiB");
  if (bytes >= (1U << 10U)) return cat(bytes >> 10U, " KiB");
  return cat(bytes, " B");
}

struct Axes {
  Axis x;  // powers of two
  Axis y;  // powers of ten
};

Axes axes_of(const Plot& plot) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axes axes{.x = {.low = kInfinity, .high = -kInfinity, .from = kLeft, .to = kWidth - kRight},
            .y = {.low = kInfinity, .high = -kInfinity, .from = kHeight - kBottom, .to = kTop}};
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) {
      if (!is_shown(point)) continue;
      axes.x.low = std::min(axes.x.low, std::floor(std::log2(point.x)));
      axes.x.high = std::max(axes.x.high, std::ceil(std::log2(point.x)));
      axes.y.low = std::min(axes.y.low, std::floor(std::log10(point.y)));
      axes.y.high = std::max(axes.y.high, std::ceil(std::log10(point.y)));
    }
  }
  for (Axis* axis : {&axes.x, &axes.y}) {
    if (axis->low > axis->high) *axis = {.low = 0, .high = 1, .from = axis->from, .to = axis->to};
    if (axis->low == axis->high) axis->high += 1;
  }
  return axes;
}

std::string grid_of(const Axes& axes) {
  std::string out;
  for (double power = axes.y.low; power <= axes.y.high; ++power) {
    const double y = axes.y.place(power);
    out += grid_line(axes.x.from, y, axes.x.to, y) +
           text_at(kLeft - 8, y + 4, time_text(power), {.anchor = "end"});
  }
  // At most about eight sizes have room for their names.
  const double step = std::max(1.0, std::ceil((axes.x.high - axes.x.low) / 8));
  for (double power = axes.x.low; power <= axes.x.high; power += step) {
    const double x = axes.x.place(power);
    out += grid_line(x, axes.y.from, x, axes.y.to) + text_at(x, axes.y.from + 18, size_text(power), {});
  }
  return out;
}

std::string line_of(const PlotLine& line, const Axes& axes, const char* colour) {
  std::string places;
  std::string dots;
  for (const PlotPoint& point : line.points) {
    if (!is_shown(point)) continue;
    const std::string x = rounded(axes.x.place(std::log2(point.x)), 1);
    const std::string y = rounded(axes.y.place(std::log10(point.y)), 1);
    places += cat(places.empty() ? "" : " ", x, ",", y);
    dots += cat("<circle cx=\"", x, "\" cy=\"", y, "\" r=\"3\" fill=\"", colour, "\"/>\n");
  }
  return cat("<polyline points=\"", places, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"/>\n",
             dots);
}

}  // namespace

void add_point(Plot& plot, const std::string& line, const PlotPoint& point) {
  auto found = std::find_if(plot.lines.begin(), plot.lines.end(),
                            [&line](const PlotLine& other) { return other.name == line; });
  if (found == plot.lines.end()) found = plot.lines.insert(plot.lines.end(), {.name = line});
  if (found->points.empty() || found->points.back().x != point.x) found->points.push_back(point);
}

std::string svg_of(const Plot& plot) {
  const Axes axes = axes_of(plot);
  std::string out =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kWidth, "\" height=\"", kHeight,
          "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"white\"/>\n");
  out += text_at((kLeft + kWidth - kRight) / 2, kTop - 18, plot.title, {});
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 14, "bytes", {});
  out += grid_of(axes);
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const char* const colour = kColours[i % kColours.size()];
    out += line_of(plot.lines[i], axes, colour);
    out += text_at(kWidth - kRight + 14, kTop + 16 + 20 * static_cast<double>(i), plot.lines[i].name,
                   {.anchor = "start", .colour = colour});
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::bench
