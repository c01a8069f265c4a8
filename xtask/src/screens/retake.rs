//! Blocks of a page that show program output, regenerated where a comment before the block gives the command.
//!
//! `<!-- shown by: COMMAND; keys: K K; lines: 1-9 -->` is a screen after those keys; blocks with the same command share one run. `<!--
//! printed by: COMMAND; lines: 1-9 -->` is standard output.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;

use anyhow::{Context as _, Result, ensure};

use super::{SETTLE, SIZE, WARM};
use crate::tmux::Tmux;

/// Range of output lines, 1-based.
#[derive(Debug, PartialEq, Eq)]
struct Lines(usize, usize);

/// How a block is taken.
#[derive(Debug, PartialEq, Eq)]
struct Taking {
    /// Printed, and not on a screen.
    printed: bool,
    command: String,
    keys: Vec<String>,
    lines: Lines,
}

/// Takes all such blocks of the page, in `folder`; gives the page and how many there were.
pub(super) fn retake(page: &str, binary: &Path, folder: &Path) -> Result<(String, usize)> {
    let (mut new, mut taken) = (String::new(), 0);
    let mut session: Option<(String, Tmux)> = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        new.push_str(line);
        new.push('\n');
        let Some(taking) = parse(line)? else { continue };
        ensure!(lines.next() == Some("```text"), "a block of text must follow: {line}");
        ensure!(lines.by_ref().any(|line| line == "```"), "the block has no end: {line}");
        let shown = if taking.printed {
            print(&taking.command, binary, folder)?
        } else {
            if session.as_ref().is_none_or(|(command, _)| *command != taking.command) {
                let with = taking.command.replacen("tokengap", &binary.display().to_string(), 1);
                let tmux = Tmux::run(SIZE, &format!("cd {}; exec {with}", folder.display()))?;
                sleep(WARM);
                session = Some((taking.command.clone(), tmux));
            }
            let (_, tmux) = session.as_ref().context("a session runs")?;
            for key in &taking.keys {
                tmux.press(&[key])?;
                sleep(SETTLE);
            }
            tmux.pane()?
        };
        let cut: Vec<&str> = shown
            .lines()
            .take(taking.lines.1)
            .skip(taking.lines.0 - 1)
            .map(str::trim_end)
            .collect();
        new.extend(["```text\n", cut.join("\n").trim_end(), "\n```\n"]);
        taken += 1;
    }
    Ok((new, taken))
}

fn print(command: &str, binary: &Path, folder: &Path) -> Result<String> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let ours = binary.parent().map(Path::to_owned);
    let path = std::env::join_paths(ours.into_iter().chain(std::env::split_paths(&inherited)))?;
    let out = Command::new("bash")
        .args(["-c", command])
        .current_dir(folder)
        .env("PATH", path)
        .output()?;
    ensure!(
        out.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}

fn parse(line: &str) -> Result<Option<Taking>> {
    let said = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
    let Some((how, rest)) = said.and_then(|said| said.split_once(" by: ")) else {
        return Ok(None);
    };
    let (rest, lines) = rest.rsplit_once("; lines: ").context("which lines?")?;
    let (from, to) = lines.split_once('-').context("lines are like 1-9")?;
    let lines = Lines(from.parse::<usize>()?.max(1), to.parse()?);
    Ok(Some(match how {
        "printed" => Taking {
            printed: true,
            command: rest.to_owned(),
            keys: Vec::new(),
            lines,
        },
        "shown" => {
            let (command, keys) = rest.split_once("; keys: ").context("which keys?")?;
            Taking {
                printed: false,
                command: command.to_owned(),
                keys: keys.split(' ').map(str::to_owned).collect(),
                lines,
            }
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_how_its_block_is_taken() -> Result<()> {
        assert_eq!(
            parse("<!-- shown by: tokengap demo; keys: 2 Enter; lines: 3-9 -->")?,
            Some(Taking {
                printed: false,
                command: "tokengap demo".into(),
                keys: vec!["2".into(), "Enter".into()],
                lines: Lines(3, 9),
            })
        );
        assert_eq!(parse("<!-- not run: needs a cluster -->")?, None);
        let page = "before\n<!-- printed by: printf '1\\n2\\n3\\n'; lines: 2-3 -->\n```text\nold\n```\nafter\n";
        let (new, taken) = retake(page, Path::new("/bin/true"), Path::new("/"))?;
        assert_eq!(taken, 1);
        assert_eq!(new, page.replace("old", "2\n3"));
        Ok(())
    }
}
