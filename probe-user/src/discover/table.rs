//! Display of a topology as a table, for `attach` when it must list engines and ask.

use std::fmt;

use super::setting::Setting;
use super::topology::{Carries, Confidence, Engine, HopSeen, Process, Topology};

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.engines.is_empty() {
            writeln!(f, "no engine found")?;
        }
        for (i, engine) in self.engines.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            writeln!(f, "engine {}: {engine}", i + 1)?;
        }
        if !self.blind.is_empty() && !self.engines.is_empty() {
            writeln!(f)?;
        }
        for blind in &self.blind {
            writeln!(f, "not seen: {blind}")?;
            if let Some(remedy) = blind.remedy() {
                writeln!(f, "          {remedy}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Engine {
    /// Writes a headline, the processes and the hops. Hops with the same name and endpoint share a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&headline(self))?;
        let rows: Vec<[String; 6]> = self.processes.iter().map(row).collect();
        table(f, ["pid", "role", "rank", "libzmq", "python", "known by"], &rows)?;
        let mut lines: Vec<[String; 5]> = Vec::new();
        for hop in &self.hops {
            let line = hop_line(hop);
            match lines.iter_mut().find(|l| l[0] == line[0] && l[2..] == line[2..]) {
                Some(known) => known[1] = format!("{}, {}", known[1], line[1]),
                None => lines.push(line),
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        table(f, ["hop", "pid:fd -> pid:fd", "endpoint", "carries", ""], &lines)
    }
}

fn headline(engine: &Engine) -> String {
    let said = |name: &str, value: Option<&Setting<String>>| value.map(|v| format!("{name} {}", v.value));
    let mut parts: Vec<String> = Vec::new();
    parts.extend(said("Dynamo", engine.dynamo.as_ref()));
    parts.push(said("SGLang", engine.sglang.as_ref()).unwrap_or_else(|| "SGLang of unknown release".into()));
    if !engine.is_named() {
        parts.push("by the look of its sockets".into());
    }
    parts.extend(engine.mode.as_ref().map(|m| format!("{:?}", m.value).to_lowercase()));
    parts.extend(engine.codec.as_ref().map(|c| c.value.word().to_owned()));
    parts.extend(
        engine
            .skip_tokenizer_init
            .as_ref()
            .filter(|s| s.value)
            .map(|_| "no detokenizer in the path".to_owned()),
    );
    parts.extend(
        engine
            .disaggregation
            .as_ref()
            .map(|d| format!("{} server: sends {}", d.value.word(), d.value.sends())),
    );
    parts.join(", ")
}

fn row(p: &Process) -> [String; 6] {
    let unknown = || "-".to_owned();
    [
        p.id.pid.to_string(),
        p.role.to_string(),
        p.rank.to_string(),
        p.libzmq
            .as_ref()
            .map_or_else(unknown, |l| l.release.map_or_else(|| "?".into(), |r| r.to_string())),
        p.python.as_ref().map_or_else(unknown, |v| v.value.to_string()),
        format!("{} ({})", p.role_source, p.title),
    ]
}

fn hop_line(hop: &HopSeen) -> [String; 5] {
    let end = |end: Option<super::End>| end.map_or_else(|| "?".to_owned(), |e| format!("{}:{}", e.pid, e.fd));
    let carries = match hop.carries {
        Carries::Output => "tokens",
        Carries::Requests => "requests",
        Carries::Unknown => "?",
    };
    let sure = if hop.confidence == Confidence::Certain {
        ""
    } else {
        "inferred"
    };
    [
        hop.name(),
        format!("{} -> {}", end(hop.from), end(hop.to)),
        hop.endpoint.clone(),
        carries.into(),
        sure.into(),
    ]
}

/// Writes a table with columns as wide as their widest cell, and without trailing blanks.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, head: [&str; N], rows: &[[String; N]]) -> fmt::Result {
    let mut widths = head.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head = head.map(str::to_owned);
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        write!(f, "\n  {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::degraded::Blind;
    use super::super::tests::{Made, scene};
    use super::*;

    #[test]
    fn a_table_of_two_engines_and_what_was_not_seen() {
        let made = [
            Made::titled(20, "sglang::scheduler_TP0").below(22),
            Made::titled(21, "sglang::scheduler_TP1").below(22),
            Made::nameless(22),
            Made::nameless(30),
            Made::nameless(31),
            Made::nameless(32),
        ];
        let connected = [
            (0, 2, "ipc:///tmp/tmpk3v_0qz7"),
            (3, 5, "tcp://127.0.0.1:30233"),
            (4, 5, "tcp://127.0.0.1:30233"),
        ];
        let topology = Topology {
            engines: scene(&made, &connected),
            blind: vec![Blind::NoRole { pid: 40 }],
        };
        let shown = topology.to_string();
        let expected = "\
engine 1: SGLang of unknown release
  pid  role       rank  libzmq  python  known by
  20   scheduler  TP0   4.3.5   -       title (sglang::scheduler_TP0)
  21   scheduler  TP1   4.3.5   -       title (sglang::scheduler_TP1)
  22   tokenizer        4.3.5   -       its children (python engine.py)
  hop                   pid:fd -> pid:fd  endpoint                carries
  scheduler->tokenizer  20:1 -> 22:0      ipc:///tmp/tmpk3v_0qz7  tokens   inferred

engine 2: SGLang of unknown release, by the look of its sockets
  pid  role       rank  libzmq  python  known by
  30   scheduler        4.3.5   -       its sockets (python engine.py)
  31   scheduler        4.3.5   -       its sockets (python engine.py)
  32   tokenizer        4.3.5   -       its sockets (python engine.py)
  hop                   pid:fd -> pid:fd            endpoint               carries
  scheduler->tokenizer  30:3 -> 32:2, 31:5 -> 32:4  tcp://127.0.0.1:30233  tokens   inferred

not seen: pid 40: its role is not known from its title, command or sockets
          --pid 40=scheduler (or detokenizer, tokenizer, ...)
";
        assert_eq!(shown, expected, "{shown}");
    }

    #[test]
    fn nothing_found_is_said() {
        assert_eq!(Topology::default().to_string(), "no engine found\n");
    }
}
