//! Checks that every command and flag in the documentation exists.

mod faq;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};

/// Flags of other programs that pages mention by name alone.
const FOREIGN_FLAGS: [&str; 3] = [
    // The engines' servers.
    "--api-server-count --data-parallel-size --detokenizer-worker-num --disable-log-stats --disaggregation-mode --dp-size --enable-http2 --enable-metrics \
     --enable-request-time-stats-logging --export-metrics-to-file --grpc-port --incremental-streaming-output --kv-transfer-config --log-requests --model \
     --reasoning-parser --response-plane --skip-tokenizer-init --ssl-keyfile --stream-interval --stream-output --tokenizer-mode \
     --tokenizer-worker-num --tool-call-parser",
    // kubectl, its plugin, the kubelet, container engines.
    "--cap-add --custom --dry-run --prefix --seccomp-default --target",
    // `cargo` and `cargo xtask`.
    "--check --features --parquet",
];

/// Files of the documentation with their text, in the order of their paths.
fn documentation_pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|page| root.join(page)).into();
    for folder in ["docs", "docs/reference", "docs/internals", "deploy", "deploy/systemd"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("it is a folder");
        paths.extend(entries.map(|entry| entry.expect("it is listed").path()));
    }
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut pages = Vec::new();
    for path in paths {
        // A file that is not text is no page.
        if let Ok(text) = std::fs::read_to_string(&path) {
            pages.push((path, text));
        }
    }
    pages
}

/// `tokengap` command lines of a page with their line numbers, from code blocks and inline code.
fn tokengap_commands_with_line_numbers(text: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut language_of_block = None;
    for (line_number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            // The line begins a block, or ends it.
            language_of_block = if language_of_block.is_none() { Some(language) } else { None };
        } else if language_of_block.is_some_and(|language| language != "text") || line.starts_with("ExecStart=") {
            let line = line.trim_start_matches("$ ").trim_start_matches("ExecStart=");
            commands.push((line_number, line.trim_start_matches("sudo ").trim_start_matches("/usr/bin/")));
        } else {
            // Every second part lies between two backquotes.
            let code_spans = line.split('`').skip(1).step_by(2);
            commands.extend(code_spans.map(|span| (line_number, span.trim_start_matches("sudo "))));
        }
    }
    commands.retain(|(_, command)| command.starts_with("tokengap "));
    commands.into_iter().map(|(line_number, command)| (line_number, command.to_owned())).collect()
}

/// Flags of a command, with those that all commands have.
fn flag_names(command: &Command) -> BTreeSet<String> {
    let mut all: BTreeSet<String> =
        command.get_arguments().filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect();
    all.extend(["--help".to_owned(), "--version".to_owned(), "--verbose".to_owned()]);
    all
}

/// Words of a command line up to `--`, a pipe or a redirection, without values after `=`.
fn command_words(command: &str) -> impl Iterator<Item = &str> {
    command
        .split_whitespace()
        // The program itself.
        .skip(1)
        .take_while(|word| !matches!(*word, "--" | "|" | "&&" | "#" | ">" | ";"))
        .map(|word| word.split('=').next().unwrap_or(word).trim_end_matches([',', ';', ')', '.']))
}

#[test]
fn documented_commands_and_their_flags_exist() {
    let cli = crate::cli::Cli::command();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in documentation_pages() {
        for (line_number, command) in tokengap_commands_with_line_numbers(&text) {
            let mut words = command_words(&command);
            // A command line with flags alone, or with a placeholder such as `COMMAND`, names no command.
            let Some(name) = words.next().filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())) else {
                continue;
            };
            seen += 1;
            let Some(subcommand) = cli.find_subcommand(name) else {
                wrong.push(format!("{}:{line_number}: no command {name}: {command}", path.display()));
                continue;
            };
            let known = flag_names(subcommand);
            for flag in words.filter(|word| word.starts_with("--") && !known.contains(*word)) {
                wrong.push(format!("{}:{line_number}: {name} has no {flag}", path.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen > 50, "only {seen} commands were found");
}

#[test]
fn flags_mentioned_alone_exist() {
    let cli = crate::cli::Cli::command();
    let mut known: BTreeSet<String> = cli.get_subcommands().flat_map(flag_names).collect();
    known.extend(flag_names(&cli));
    known.extend(FOREIGN_FLAGS.iter().flat_map(|flags| flags.split(' ')).map(str::to_owned));
    let mut wrong = Vec::new();
    for (path, text) in
        documentation_pages().into_iter().filter(|(path, _)| path.extension().is_some_and(|kind| kind == "md"))
    {
        for (line_number, line) in (1..).zip(text.lines()) {
            // Every second part lies between two backquotes.
            let code_spans = line.split('`').skip(1).step_by(2);
            for flag in
                code_spans.filter_map(|span| span.split([' ', '=']).next()).filter(|span| span.starts_with("--"))
            {
                if !known.contains(flag) {
                    wrong.push(format!("{}:{line_number}: {flag}", path.display()));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_finding_has_an_entry_in_troubleshooting_and_alerts() {
    let pages = [include_str!("../../../docs/troubleshooting.md"), include_str!("../../../docs/reference/alerts.md")];
    let missing = pages.map(|page| {
        let kinds = trace::detect::ALL.iter().map(|detector| detector.kind);
        kinds.filter(|kind| !page.contains(&format!("`{kind}`"))).collect::<Vec<_>>()
    });
    let none: [Vec<&str>; 2] = [Vec::new(), Vec::new()];
    assert_eq!(missing, none);
}

/// Each finding in the table of alerts is in the expression of its alert, or has a metric of its own.
#[test]
fn alerts_on_findings_name_the_documented_kinds() {
    let rules = include_str!("../../../deploy/prometheus/alerts.yml");
    let page = include_str!("../../../docs/reference/alerts.md");
    let mut checked = 0;
    for rule in rules.split("- alert: ").skip(1).filter(|rule| rule.contains("tokengap_active_findings")) {
        let (name, _) = rule.split_once('\n').expect("a name");
        let (_, kinds) = rule.split_once("kind=~\"").expect("kinds");
        let kinds = kinds.split('"').next().expect("they end").replace('|', "`, `");
        assert!(page.contains(&format!("| `{name}` | of the finding | `{kinds}` |")), "{name}: {kinds}");
        checked += 1;
    }
    assert_eq!(checked, page.matches("| of the finding |").count());
}
