//! Display of a topology as a table, for `attach` when it must list engines and ask.

use std::fmt;

use adapter::discover::{Carries, Confidence, Disaggregation, End, HopSeen, Settings};

use super::blind_spot::BlindSpot;
use super::topology::{Engine, Process, Topology};

impl fmt::Display for Topology {
    /// Writes the engines as tables, then the candidates, and then what cannot be observed, with its remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.confirmed_engines().next().is_none() {
            writeln!(f, "no engine found")?;
        }
        for (index, engine) in self.confirmed_engines().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            writeln!(f, "engine {}: {engine}", index + 1)?;
        }
        for (index, candidate) in self.unconfirmed_engines().enumerate() {
            if index == 0 {
                writeln!(
                    f,
                    "\ncandidates without a connection between two roles (an engine that is starting, or only a title):"
                )?;
            }
            writeln!(f, "candidate: {candidate}")?;
        }
        if !self.blind_spots.is_empty() && !self.engines.is_empty() {
            writeln!(f)?;
        }
        // Last, because they explain what the tables above lack.
        write_blind_spots(f, &self.blind_spots)
    }
}

/// Writes what cannot be observed, each with a line for its remedy if there is one.
fn write_blind_spots(f: &mut fmt::Formatter<'_>, blind_spots: &[BlindSpot]) -> fmt::Result {
    for blind in blind_spots {
        writeln!(f, "not observed: {blind}")?;
        if let Some(remedy) = blind.remedy() {
            writeln!(f, "          {remedy}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Engine {
    /// Writes a headline, the processes and the hops. Hops with the same name and endpoint share a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&engine_headline(self))?;
        let rows: Vec<[String; 6]> = self.processes.iter().map(process_table_cells).collect();
        write_table(f, ["pid", "role", "rank", "libzmq", "python", "known by"], &rows)?;
        let mut hop_rows: Vec<HopRow> = Vec::new();
        for hop in &self.hops {
            let row = HopRow::new(hop);
            match hop_rows.iter_mut().find(|other| other.describes_same_hop(&row)) {
                Some(other) => other.sockets = format!("{}, {}", other.sockets, row.sockets),
                None => hop_rows.push(row),
            }
        }
        // An engine without hops gets no second table.
        if hop_rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<[String; 5]> = hop_rows.into_iter().map(HopRow::into_cells).collect();
        // The last column has no heading, because it is empty unless a hop is only inferred.
        write_table(f, ["hop", "pid:fd -> pid:fd", "endpoint", "carries", ""], &rows)
    }
}

/// Release and settings of an engine in one line.
fn engine_headline(engine: &Engine) -> String {
    let mut parts = Vec::new();
    // A program that runs the engine inside comes first.
    for host in engine.releases.iter().filter(|known| Some(known.engine) != engine.kind) {
        parts.push(format!("{} {}", host.engine.title(), host.release.value));
    }
    let title = engine.kind.map_or("engine", |kind| kind.title());
    parts.push(match engine.release() {
        Some(release) => format!("{title} {}", release.value),
        None => format!("{title} of unknown release"),
    });
    if !engine.is_named() {
        parts.push("from its sockets".into());
    }
    parts.extend(settings_to_words(&engine.settings));
    parts.join(", ")
}

/// The settings that decide how output is transferred, each in a few words. An unknown one is left out.
fn settings_to_words(settings: &Settings) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(mode) = &settings.mode {
        parts.push(format!("{:?}", mode.value).to_lowercase());
    }
    if let Some(codec) = &settings.codec {
        parts.push(codec.value.word().to_owned());
    }
    if settings.skip_tokenizer_init.as_ref().is_some_and(|skips| skips.value) {
        parts.push("no detokenizer in the path".to_owned());
    }
    if let Some(side) = &settings.disaggregation {
        let Disaggregation { word: side_name, sends } = side.value;
        parts.push(format!("{side_name} server: sends {sends}"));
    }
    parts
}

/// Cell of an unknown value.
fn unknown_cell() -> String {
    "-".to_owned()
}

/// Cells of a process in the table.
fn process_table_cells(process: &Process) -> [String; 6] {
    // A question mark stands for a libzmq of unknown release.
    let libzmq = match &process.libzmq {
        Some(libzmq) => libzmq.release.map_or_else(|| "?".to_owned(), |release| release.to_string()),
        None => unknown_cell(),
    };
    [
        process.id.pid.to_string(),
        process.role.to_string(),
        process.rank.to_string(),
        libzmq,
        process.python.as_ref().map_or_else(unknown_cell, |version| version.value.to_string()),
        format!("{} ({})", process.role_source, process.title),
    ]
}

/// A hop in the table, with one or more connections.
struct HopRow {
    roles: String,
    /// Pids and descriptors at both ends of each connection.
    sockets: String,
    endpoint: String,
    carries: &'static str,
    certainty: &'static str,
}

impl HopRow {
    /// The row of a hop with one connection.
    fn new(hop: &HopSeen) -> Self {
        Self {
            roles: hop.ends().to_string(),
            sockets: format!("{} -> {}", display_end(hop.from), display_end(hop.to)),
            endpoint: hop.endpoint.clone(),
            carries: match hop.carries {
                Carries::Output => "tokens",
                Carries::Requests => "requests",
                Carries::Unknown => "?",
            },
            certainty: if hop.confidence == Confidence::Certain { "" } else { "inferred" },
        }
    }

    /// Whether both rows differ in their sockets only.
    fn describes_same_hop(&self, other: &Self) -> bool {
        self.roles == other.roles
            && self.endpoint == other.endpoint
            && self.carries == other.carries
            && self.certainty == other.certainty
    }

    fn into_cells(self) -> [String; 5] {
        [self.roles, self.sockets, self.endpoint, self.carries.to_owned(), self.certainty.to_owned()]
    }
}

/// Pid and descriptor of an end; `?` if it is not visible.
fn display_end(end: Option<End>) -> String {
    end.map_or_else(|| "?".to_owned(), |end| format!("{}:{}", end.pid, end.fd))
}

/// Writes a table with columns as wide as their widest cell, and without trailing blanks.
fn write_table<const N: usize>(f: &mut fmt::Formatter<'_>, head: [&str; N], rows: &[[String; N]]) -> fmt::Result {
    let mut widths = head.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    // The headings are written like a row.
    let head = head.map(str::to_owned);
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        write!(f, "\n  {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_topology_is_reported() {
        assert_eq!(Topology::default().to_string(), "no engine found\n");
    }
}
