//! `cargo xtask docs`: runs every command in the documentation, in a folder per page, unless the page gives a reason not to.
//! `tui/src/documents` checks that their flags exist.

mod block;
mod links;
mod page;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use self::block::Block;
use self::page::Page;
use crate::dist;
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::session::{Session, Setting};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;
use crate::toolchain::succeed;

/// SGLang release of the engine that commands attach to.
const RELEASE: &str = "0.5.23";

/// Run every command that the documents show
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tokengap that is run; by default a release build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only this page.
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
    /// The command already runs in its own PID namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => crate::screens::build()?,
    };
    if may_attach() && !options.inside {
        Home::find().prepare(&[RELEASE])?;
        // In a new PID namespace there is only one engine to attach to, and no process outlives this one.
        let mut inside = Command::new("unshare");
        inside
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(std::env::current_exe()?)
            .args(["docs", "--inside", "--binary"])
            .arg(binary);
        return succeed(inside.args(options.only.iter().flat_map(|only| [Path::new("--only"), only])));
    }
    let root = dist::root()?;
    let (mut ran, mut left) = (0, 0);
    let mut wrong = Vec::new();
    for path in pages(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        if options
            .only
            .as_ref()
            .is_some_and(|only| only.as_path() != Path::new(&name))
        {
            continue;
        }
        let blocks = block::blocks(&std::fs::read_to_string(&path)?).with_context(|| name.clone())?;
        let mut page = Page::new(&binary)?;
        for block in &blocks {
            let place = format!("{name}:{}", block.line);
            let begun = Instant::now();
            let why = match &block.not {
                Some(why) => Some(why.as_str()),
                None if block.engine && !may_attach() => Some("IT NEEDS ROOT HERE, to attach"),
                None => None,
            };
            if let Some(why) = why {
                left += block.commands.len();
                println!("{place}: not run: {why}");
                wrong.extend(ours(&block.commands).err().map(|error| format!("{place}: {error:#}")));
                continue;
            }
            ran += block.commands.len();
            let outcome = if block.engine {
                with_engine(&mut page, block)
            } else {
                page.run(block)
            };
            match outcome {
                Ok(()) => println!("{place}: {:.1} s", begun.elapsed().as_secs_f32()),
                Err(error) => wrong.push(format!("{place}: {error:#}")),
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(ran + left > 0, "no page has a command");
    println!("{ran} commands run, {left} not, each for the reason it gives");
    Ok(())
}

/// Every page of the project.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = vec![root.join("engine/README.md")];
    for folder in ["", "docs", "docs/reference", "docs/internals"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            pages.push(entry?.path());
        }
    }
    pages.retain(|page| page.extension().is_some_and(|kind| kind == "md"));
    pages.sort();
    Ok(pages)
}

/// Checks that every `cargo xtask` command exists, even in blocks that are not run.
fn ours(commands: &[String]) -> Result<()> {
    for command in commands {
        if let Some((_, rest)) = command.split_once("cargo xtask ") {
            let words = std::iter::once("cargo xtask").chain(rest.split_whitespace());
            crate::understood(words).with_context(|| format!("`{command}`"))?;
        }
    }
    Ok(())
}

fn may_attach() -> bool {
    rustix::process::geteuid().is_root()
}

fn with_engine(page: &mut Page, block: &Block) -> Result<()> {
    let home = Home::find();
    home.prepare(&[RELEASE])?;
    let engine = Engine {
        release: RELEASE.into(),
        msgpack: false,
    };
    let setting = Setting {
        http: true,
        gap_ms: 5,
        plan: Plan {
            requests: 8,
            rounds: 0,
            ..Plan::PLAIN
        },
        ..Setting::new(&engine)
    };
    let dir = tempfile::tempdir()?;
    let mut session = Session::start(&home, &setting, &Relay::Absent, dir.path())?;
    session.go()?;
    page.engine = Some(session.tokenizer_pid());
    let outcome = page.run(block);
    page.engine = None;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks that `cargo xtask docs` makes before it runs any command.
    #[test]
    fn the_blocks_of_every_page_are_understood() -> Result<()> {
        let root = dist::root()?;
        let pages = pages(&root)?;
        assert!(pages.len() > 2, "{pages:?}");
        for path in pages {
            let blocks = block::blocks(&std::fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
            for block in blocks {
                ours(&block.commands).with_context(|| format!("{}:{}", path.display(), block.line))?;
            }
        }
        Ok(())
    }
}
