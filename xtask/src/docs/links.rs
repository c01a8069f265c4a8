//! Links between the pages of the project: each leads to a file that exists and, where it names one, to a heading of that file.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::dist;

/// Targets of the links in `text`, code apart.
fn targets(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            let linked = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
            found.extend(linked.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target));
        }
    }
    found
}

/// Anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        } else if let Some(heading) = line.strip_prefix('#').filter(|_| !code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

/// Resolves `.` and `..` without looking at the disk.
fn resolved(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(whole.pop()),
            std::path::Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() -> Result<()> {
    let root = dist::root()?;
    let mut wrong = Vec::new();
    for page in super::pages(&root)? {
        let text = std::fs::read_to_string(&page)?;
        for target in targets(&text).into_iter().filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                page.clone()
            } else {
                resolved(&page.parent().context("a folder")?.join(file))
            };
            let sound =
                path.exists() && (anchor.is_empty() || anchors(&std::fs::read_to_string(&path)?).contains(anchor));
            if !sound {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    Ok(())
}

#[test]
fn every_alert_has_a_runbook() -> Result<()> {
    let root = dist::root()?;
    let rules = std::fs::read_to_string(root.join("deploy/prometheus/alerts.yml"))?;
    let headings = anchors(&std::fs::read_to_string(root.join("docs/troubleshooting.md"))?);
    let runbooks: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook: docs/troubleshooting.md#"))
        .collect();
    assert_eq!(runbooks.len(), rules.matches("- alert:").count());
    assert!(
        runbooks.iter().all(|runbook| headings.contains(*runbook)),
        "{runbooks:?}"
    );
    Ok(())
}

#[test]
fn the_book_has_every_page() -> Result<()> {
    let docs = dist::root()?.join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md"))?;
    let listed: BTreeSet<PathBuf> = targets(&summary).into_iter().map(|target| docs.join(target)).collect();
    let pages: BTreeSet<PathBuf> = super::pages(&dist::root()?)?
        .into_iter()
        .filter(|page| page.starts_with(&docs) && !page.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(pages.difference(&listed).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    Ok(())
}

#[test]
fn anchors_are_made_of_headings() {
    let text = "# A page\n## What it `costs`, and why\n```sh\n# not this\n```\n";
    let found: Vec<String> = anchors(text).into_iter().collect();
    assert_eq!(found, ["a-page", "what-it-costs-and-why"]);
    assert_eq!(
        targets("see [a](b.md#c) and [d](e)\n```\n[no](x)\n```\n"),
        ["b.md#c", "e"]
    );
}
