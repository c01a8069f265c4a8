//! `hot PATH LAPS` runs one hot path that many times and nothing else, for an instruction counter. Without arguments it lists the paths.

use anyhow::{Context, ensure};

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, laps] = words.as_slice() else {
        ensure!(words.is_empty(), "usage: hot PATH LAPS");
        for name in hot::paths::NAMES {
            println!("{name}");
        }
        return Ok(());
    };
    let laps: u32 = laps.parse().context("LAPS is a number")?;
    let mut lap = hot::paths::path(name)?;
    for _ in 0..laps {
        lap()?;
    }
    Ok(())
}
