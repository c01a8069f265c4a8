//! `cargo xtask schemas`: the table of SGLang's message layouts, read from the released wheels.
//!
//! Releases already in the table are kept. New ones are downloaded once (wheel only, nothing is installed or run) and read by `schemas.py`.
//! Consecutive releases with the same layout share one line.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

pub(crate) const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/src/wire/schemas.txt");
const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/schemas.py");
const HEADER: &str = "\
# Every message class of SGLang's io_struct, every layout it has had. Written by `cargo xtask schemas`; do not edit.
# CLASS FORM RELEASES FIELD...   fields in the order of the wire, equal layouts of neighbouring releases in one line
";
/// First release to read.
const FIRST: &str = "0.4.0";
/// Platforms of the wheels to look for; the Python files inside are the same.
const PLATFORMS: [&str; 3] = ["manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "any"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read every release again, also those in the table
    #[arg(long)]
    all: bool,
    /// Change nothing: fail when the table would change
    #[arg(long)]
    check: bool,
    /// Python with pip
    #[arg(long, default_value = "python3")]
    python: String,
}

/// `CLASS FORM FIELD...` -> the places of the releases that have it.
type Layouts = BTreeMap<String, Vec<usize>>;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(TABLE).with_context(|| TABLE.to_owned())?;
    let (known, known_layouts) = if args.all {
        (Vec::new(), Layouts::new())
    } else {
        parse(&text)?
    };
    let releases = released(&args.python)?;
    let mut layouts = Layouts::new();
    for (line, places) in known_layouts {
        let moved = places
            .iter()
            .map(|place| releases.iter().position(|name| *name == known[*place]));
        layouts.insert(
            line,
            moved
                .collect::<Option<_>>()
                .context("a release of the table is no longer published")?,
        );
    }
    for (place, release) in releases
        .iter()
        .enumerate()
        .filter(|(_, release)| !known.contains(release))
    {
        eprintln!("reading {release}");
        for line in read(&args.python, release)?.lines() {
            layouts.entry(line.to_owned()).or_default().push(place);
        }
    }
    let new = render(&releases, &layouts);
    if new == text {
        println!("{} releases, {} layouts: up to date", releases.len(), layouts.len());
    } else if args.check {
        bail!("the table is out of date: run `cargo xtask schemas`");
    } else {
        std::fs::write(TABLE, new)?;
        println!("{} releases, {} layouts: written", releases.len(), layouts.len());
    }
    Ok(())
}

/// All published releases from [`FIRST`] on, oldest first, including release candidates.
fn released(python: &str) -> anyhow::Result<Vec<String>> {
    let answer = output(Command::new(python).args(["-m", "pip", "index", "versions", "--pre", "sglang"]))?;
    let list = answer
        .lines()
        .find_map(|line| line.strip_prefix("Available versions: "))
        .context("pip lists nothing")?;
    let mut releases: Vec<String> = list.split(", ").map(|release| release.trim().to_owned()).collect();
    releases.reverse();
    let first = releases
        .iter()
        .position(|release| release == FIRST)
        .with_context(|| format!("{FIRST} is gone"))?;
    Ok(releases.split_off(first))
}

/// Classes of a release, as `schemas.py` prints them.
fn read(python: &str, release: &str) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]);
    pip.args(PLATFORMS.map(|platform| format!("--platform={platform}")));
    output(pip.arg("-d").arg(folder.path()).arg(format!("sglang=={release}")))?;
    let wheel = std::fs::read_dir(folder.path())?
        .next()
        .context("pip downloaded nothing")??
        .path();
    output(Command::new(python).arg(Path::new(READER)).arg(wheel))
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let done = command.output().with_context(|| format!("{command:?}"))?;
    if !done.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(String::from_utf8(done.stdout)?)
}

/// Releases and layouts of the table.
fn parse(text: &str) -> anyhow::Result<(Vec<String>, Layouts)> {
    let mut releases: Vec<String> = Vec::new();
    let mut layouts = Layouts::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["releases", names @ ..] => releases = names.iter().map(ToString::to_string).collect(),
            [class, form, spans, fields @ ..] => {
                let layout = [&[*class, *form], fields].concat().join(" ");
                let mut places = Vec::new();
                for span in spans.split(',') {
                    let (first, last) = span.split_once("..").unwrap_or((span, span));
                    let place = |name| releases.iter().position(|release| release == name);
                    let ends = place(first)
                        .zip(place(last))
                        .with_context(|| format!("unknown release in {span}"))?;
                    places.extend(ends.0..=ends.1);
                }
                layouts.insert(layout, places);
            }
            _ => bail!("a line of the table with too few words: {line}"),
        }
    }
    Ok((releases, layouts))
}

fn render(releases: &[String], layouts: &Layouts) -> String {
    let mut rows: Vec<(&str, usize, String)> = layouts
        .iter()
        .filter_map(|(layout, places)| {
            let (class, rest) = layout.split_once(' ')?;
            let (form, fields) = rest.split_once(' ').unwrap_or((rest, ""));
            let line = format!("{class} {form} {} {fields}", spans(releases, places));
            Some((class, *places.iter().min()?, line.trim_end().to_owned()))
        })
        .collect();
    rows.sort();
    let mut text = format!("{HEADER}releases {}\n", releases.join(" "));
    for (_, _, line) in rows {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// `0.5.12..0.5.13`, several with commas: the places in order, neighbours joined.
fn spans(releases: &[String], places: &[usize]) -> String {
    let mut places = places.to_vec();
    places.sort_unstable();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for place in places {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == place => *last = place,
            _ => spans.push((place, place)),
        }
    }
    let mut text = String::new();
    for (first, last) in spans {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = if first == last {
            write!(text, "{comma}{}", releases[first])
        } else {
            write!(text, "{comma}{}..{}", releases[first], releases[last])
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_would_be_written_of_it() {
        let text = std::fs::read_to_string(TABLE).unwrap();
        let (releases, layouts) = parse(&text).unwrap();
        assert!(releases.len() >= 78 && layouts.len() >= 586);
        assert_eq!(render(&releases, &layouts), text);
    }

    #[test]
    fn a_layout_that_left_and_came_back_is_two_spans() {
        let releases = ["0.5.4", "0.5.5", "0.5.6", "0.5.7"].map(String::from);
        assert_eq!(spans(&releases, &[3, 0, 1]), "0.5.4..0.5.5,0.5.7");
    }
}
