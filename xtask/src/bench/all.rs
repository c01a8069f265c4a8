//! Every benchmark, one after the other, each in a process of its own. One that cannot run here says why, and the next follows.

use std::process::Command;
use std::time::Instant;

use anyhow::Context;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer turns and less of everything, and only what needs neither root nor an engine
    #[arg(long)]
    quick: bool,
}

/// What runs: all of it, and the words that make it quick where it can be.
const ALL: [(&str, Option<&[&str]>); 12] = [
    ("count", None),
    ("decode", Some(&["--rounds", "5", "--messages", "200"])),
    ("ledger", Some(&["--rounds", "3"])),
    ("grow", Some(&["--rounds", "1", "--finished", "200000"])),
    ("record", Some(&["--rounds", "1", "--seconds", "2", "--minutes", "1"])),
    (
        "relay",
        Some(&[
            "--rounds",
            "1",
            "--volume",
            "128",
            "--sizes",
            "64",
            "--only",
            "throughput",
        ]),
    ),
    ("export", None),
    ("screen", None),
    ("probe", None),
    ("target", None),
    ("egress", None),
    ("volume", None),
];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let mut left_out = Vec::new();
    for (name, quick) in ALL {
        let words: &[&str] = match (args.quick, quick) {
            (false, _) => &[],
            (true, Some(words)) => words,
            (true, None) => continue,
        };
        println!("\n== bench {name} {}", words.join(" "));
        let start = Instant::now();
        let status = Command::new(&program)
            .args(["bench", name])
            .args(words)
            .status()
            .with_context(|| program.display().to_string())?;
        println!("-- {:.0} s", start.elapsed().as_secs_f64());
        if !status.success() {
            left_out.push(name);
        }
    }
    if !left_out.is_empty() {
        println!("\nLEFT OUT, for the reasons above: {}", left_out.join(", "));
    }
    Ok(())
}
