//! `cargo xtask pages`: opens the HTML report of demo runs in headless Chromium: light, dark, narrow and on paper. Fails on any browser
//! error, any request of the page, and any missing content.

mod browser;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use browser::{Browser, Look};

/// Scenarios to run, and the expected content of their pages.
const PAGES: &[(&str, &[&str])] = &[
    (
        "race",
        &[
            "CRITICAL",
            "dropped-chunks",
            "fixed in 0.5.10",
            "Worst requests",
            "proven",
            "Limits and cost of the observation",
        ],
    ),
    (
        "backlog",
        &[
            "CRITICAL",
            "first-token-gap",
            "Backlog: frames sent and not yet taken",
            "How long tokens waited",
            "UTC",
        ],
    ),
    (
        "router",
        &[
            "detokenizer->worker",
            "Residence on scheduler->detokenizer-router",
            "Tokens per second",
        ],
    ),
];

/// Screenshot names, with the display settings of each.
const LOOKS: &[(&str, Look)] = &[
    (
        "light",
        Look {
            dark: false,
            width: 1100,
        },
    ),
    (
        "dark",
        Look {
            dark: true,
            width: 1100,
        },
    ),
    (
        "narrow",
        Look {
            dark: false,
            width: 420,
        },
    ),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where pages and pictures go.
    #[arg(long, value_name = "FOLDER", default_value = "target/pages")]
    output: PathBuf,

    /// The tokengap that makes them; by default a debug build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// The browser.
    #[arg(long, value_name = "FILE", default_value = "chromium")]
    browser: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => build()?,
    };
    std::fs::create_dir_all(&options.output).with_context(|| format!("cannot make {}", options.output.display()))?;
    let folder = std::fs::canonicalize(&options.output)?;
    for (scenario, says) in PAGES {
        let page = make(&binary, &folder, scenario)?;
        let mut browser = Browser::start(&options.browser)?;
        for (look, how) in LOOKS {
            let seen = browser.open(&page, *how)?;
            ensure!(
                seen.complaints.is_empty(),
                "{scenario}, {look}: the browser complains: {:?}",
                seen.complaints
            );
            ensure!(
                seen.requests.is_empty(),
                "{scenario}, {look}: the page asks for {:?}",
                seen.requests
            );
            ensure!(
                !seen.wider_than_window,
                "{scenario}, {look}: the page is wider than its window"
            );
            for text in *says {
                ensure!(
                    seen.text.contains(text),
                    "{scenario}, {look}: the page does not say {text:?}"
                );
            }
            std::fs::write(folder.join(format!("{scenario}-{look}.png")), seen.picture)?;
        }
        let paper = browser.print()?;
        ensure!(paper.starts_with(b"%PDF-"), "{scenario}: it does not print");
        std::fs::write(folder.join(format!("{scenario}.pdf")), paper)?;
        println!("{scenario}: no complaint, no request, all said");
    }
    println!("pages and pictures are in {}", folder.display());
    Ok(())
}

fn build() -> anyhow::Result<PathBuf> {
    let built = Command::new("cargo").args(["build", "--quiet", "-p", "tui"]).status();
    ensure!(
        built.context("cargo does not run")?.success(),
        "tokengap does not build"
    );
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    std::fs::canonicalize(Path::new(&target).join("debug/tokengap")).context("no tokengap was built")
}

/// Runs a scenario and writes its page.
fn make(binary: &Path, folder: &Path, scenario: &str) -> anyhow::Result<PathBuf> {
    let (json, page) = (
        folder.join(format!("{scenario}.json")),
        folder.join(format!("{scenario}.html")),
    );
    let out = std::fs::File::create(&json)?;
    let played = Command::new(binary)
        .args(["demo", "--json", "--duration", "12s", "--scenario", scenario])
        .stdout(out)
        .status();
    ensure!(
        played.context("tokengap does not run")?.success(),
        "the demo {scenario} failed"
    );
    let told = Command::new(binary)
        .arg("report")
        .arg(&json)
        .args(["--force", "--format", "html", "--output"])
        .arg(&page)
        .status();
    ensure!(
        told.context("tokengap does not run")?.success(),
        "no page was made of {scenario}"
    );
    Ok(page)
}
