//! Draws numbers over time: in the terminal, or as SVG.
//!
//! In: a title, a line for the demand, and stacked areas. Out: text. No input or output here.

use std::fmt::Write as _;

/// The content of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The labels of the x axis: their position as a part of the width, and their text.
    pub(crate) ticks: Vec<(f64, String)>,
    /// The areas, from below, by name.
    pub(crate) areas: Vec<(String, Vec<f64>)>,
    /// A line above the areas, by name and unit; it has a separate scale.
    pub(crate) line: Option<(String, Vec<f64>)>,
}

const COLOURS: [&str; 8] =
    ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5"];
/// How many points a line of a picture has at most.
const POINTS: usize = 480;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl Chart {
    fn most(&self) -> f64 {
        let length = self.areas.first().map_or(0, |(_, values)| values.len());
        let sum = |index: usize| self.areas.iter().filter_map(|(_, values)| values.get(index)).sum::<f64>();
        (0..length).map(sum).fold(1.0, f64::max)
    }

    /// Draws one row for each area and one for the line, in the given width.
    pub(crate) fn text(&self, width: usize) -> String {
        let width = width.max(1);
        let rows: Vec<(&str, &[f64])> = self
            .line
            .iter()
            .chain(&self.areas)
            .map(|(name, values)| (name.as_str(), values.as_slice()))
            .collect();
        let margin = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut text = format!("{}\n", self.title);
        for (index, (name, values)) in rows.iter().enumerate() {
            // Areas share a scale, so that their heights can be compared.
            let is_line = self.line.is_some() && index == 0;
            let all = if is_line {
                vec![*values]
            } else {
                rows[usize::from(self.line.is_some())..].iter().map(|(_, it)| *it).collect()
            };
            let most = all.iter().flat_map(|values| values.iter()).copied().fold(0.0, f64::max);
            let bars: String = columns(values, width).iter().map(|value| block(*value, most)).collect();
            let highest = values.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(text, "{name:<margin$} │{bars}│ {highest}");
        }
        let mut below = vec![' '; width];
        for (part, label) in &self.ticks {
            let from = ((part * width as f64) as usize).min(width.saturating_sub(label.chars().count()));
            below.iter_mut().skip(from).zip(label.chars()).for_each(|(place, letter)| *place = letter);
        }
        let below: String = below.into_iter().collect();
        let _ = writeln!(text, "{:<margin$}  {}", "", below.trim_end());
        text
    }

    /// Draws the chart as SVG.
    pub(crate) fn svg(&self) -> String {
        const WIDTH: f64 = 720.0;
        const HEIGHT: f64 = 240.0;
        const LEFT: f64 = 48.0;
        const TOP: f64 = 32.0;
        let most = self.most();
        let given = self.areas.first().map_or(0, |(_, values)| values.len());
        // More points than pixels would only make the file large.
        let thinned = |values: &[f64]| -> Vec<f64> {
            values.iter().copied().step_by(given.div_ceil(POINTS).max(1)).collect()
        };
        let length = thinned(&vec![0.0; given]).len().max(2);
        let x = |index: usize| LEFT + WIDTH * index as f64 / (length - 1) as f64;
        let y = |value: f64, most: f64| TOP + HEIGHT * (1.0 - value / most);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
            LEFT + WIDTH + 48.0,
            TOP + HEIGHT + 48.0,
            escaped(&self.title),
        );
        let mut below = vec![0.0; length];
        for (index, (name, values)) in self.areas.iter().enumerate() {
            let values = thinned(values);
            let above: Vec<f64> = below
                .iter()
                .enumerate()
                .map(|(at, low)| low + values.get(at).copied().unwrap_or(0.0))
                .collect();
            let upper =
                above.iter().enumerate().map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value, most)));
            let lower = below
                .iter()
                .enumerate()
                .rev()
                .map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value, most)));
            let points: Vec<String> = upper.chain(lower).collect();
            let colour = COLOURS[index % COLOURS.len()];
            let _ = writeln!(
                text,
                "<polygon fill=\"{colour}\" fill-opacity=\"0.8\" points=\"{}\"/>",
                points.join(" ")
            );
            let at = LEFT + 110.0 * index as f64;
            let bottom = TOP + HEIGHT + 40.0;
            let _ = writeln!(
                text,
                "<rect x=\"{at}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
                bottom - 9.0
            );
            let _ = writeln!(text, "<text x=\"{}\" y=\"{bottom}\">{}</text>", at + 14.0, escaped(name));
            below = above;
        }
        if let Some((name, values)) = &self.line {
            let high = values.iter().copied().fold(1.0, f64::max);
            let values = thinned(values);
            let points: Vec<String> = values
                .iter()
                .enumerate()
                .map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value, high)))
                .collect();
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"#222222\" stroke-dasharray=\"4 3\" points=\"{}\"/>",
                points.join(" ")
            );
            let at = LEFT + 110.0 * self.areas.len() as f64;
            let _ = writeln!(
                text,
                "<text x=\"{at}\" y=\"{}\">- - {}, up to {high}</text>",
                TOP + HEIGHT + 40.0,
                escaped(name)
            );
        }
        for value in [0.0, (most / 2.0).round(), most] {
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                LEFT - 6.0,
                y(value, most) + 4.0
            );
        }
        for (part, label) in &self.ticks {
            let at = LEFT + WIDTH * part;
            let _ = writeln!(
                text,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                TOP + HEIGHT + 18.0,
                escaped(label)
            );
        }
        text.push_str("</svg>\n");
        text
    }
}

/// Returns one value for each column: the largest one in its range.
fn columns(values: &[f64], width: usize) -> Vec<f64> {
    let part = |column: usize| {
        let from = column * values.len() / width;
        let to = ((column + 1) * values.len() / width).max(from + 1).min(values.len());
        values.get(from..to).unwrap_or_default().iter().copied().fold(0.0, f64::max)
    };
    (0..width).map(part).collect()
}

fn block(value: f64, most: f64) -> char {
    if value <= 0.0 || most <= 0.0 {
        return ' ';
    }
    BLOCKS[((value / most * 8.0).ceil() as usize).clamp(1, 8)]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "replicas <1 day>".to_owned(),
            ticks: vec![(0.0, "00:00".to_owned()), (0.5, "12:00".to_owned())],
            areas: vec![
                ("member1".to_owned(), vec![1.0, 1.0, 4.0, 2.0]),
                ("m2".to_owned(), vec![0.0, 1.0, 2.0, 2.0]),
            ],
            line: Some(("load".to_owned(), vec![0.0, 50.0, 100.0, 0.0])),
        }
    }

    #[test]
    fn a_terminal_shows_one_row_for_each() {
        let expected = "replicas <1 day>\n\
                        load    │    ▄▄▄▄████    │ 100\n\
                        member1 │▂▂▂▂▂▂▂▂████▄▄▄▄│ 4\n\
                        m2      │    ▂▂▂▂▄▄▄▄▄▄▄▄│ 2\n        \u{20}00:00   12:00\n";
        assert_eq!(chart().text(16), expected);
        assert_eq!(columns(&[1.0, 5.0, 2.0], 1), [5.0], "what is narrow shows the most");
    }

    #[test]
    fn a_picture_is_well_formed() {
        let svg = chart().svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("replicas &lt;1 day&gt;") && !svg.contains("NaN"), "{svg}");
        assert_eq!((svg.matches("<polygon").count(), svg.matches("<polyline").count()), (2, 1));
        let long = Chart { areas: vec![("a".to_owned(), vec![1.0; 100_000])], line: None, ..chart() };
        assert!(long.svg().len() < 20_000, "a day of seconds is still a small file");
        let empty = Chart { areas: Vec::new(), line: None, ..chart() };
        assert!(!empty.svg().contains("NaN"));
    }
}
