//! Shell blocks of a page, with the options in the comment before each block.

use anyhow::{Result, bail, ensure};

/// One block of commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// First line, 1-based.
    pub(crate) line: usize,
    /// Reason why the block is not run.
    pub(crate) not: Option<String>,
    /// Run all commands concurrently, as in terminals side by side.
    pub(crate) together: bool,
    /// Run an engine meanwhile.
    pub(crate) engine: bool,
    /// Command that creates the block's input files.
    pub(crate) first: Option<String>,
    /// Commands, with continued lines joined and comments removed.
    pub(crate) commands: Vec<String>,
}

/// All `sh` blocks. `tui/tests/cli.rs` checks `console` blocks, which show output.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut found = Vec::new();
    let mut said = Block::default();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines
                .by_ref()
                .map(|(_, line)| line.trim())
                .take_while(|line| *line != "```")
                .collect();
            if language == "sh" {
                found.push(Block {
                    line: at + 1,
                    commands: commands(&inside),
                    ..std::mem::take(&mut said)
                });
            } else if language != "console"
                && let Some(command) = inside.iter().find(|line| is_command(line))
            {
                bail!("line {}: `{command}` stands in a block of {language:?}: say sh", at + 1);
            }
        } else if let Some((what, how)) = comment(line).and_then(|comment| comment.split_once(": ")) {
            match what {
                "not run" => said.not = Some(how.to_owned()),
                "first" => said.first = Some(how.to_owned()),
                "run" => {
                    said.together = how.contains("together");
                    said.engine = how.contains("with an engine");
                }
                _ => {}
            }
        } else if !line.is_empty() {
            ensure!(
                said == Block::default(),
                "line {}: what was said of a block has no block behind it",
                at + 1
            );
        }
    }
    Ok(found)
}

fn comment(line: &str) -> Option<&str> {
    Some(line.strip_prefix("<!--")?.strip_suffix("-->")?.trim())
}

/// Whether a line is a command rather than output: the program's name, one space, a word.
fn is_command(line: &str) -> bool {
    let line = line.trim_start_matches("$ ").trim_start_matches("sudo ");
    let rest = ["tokengap ", "cargo "].iter().find_map(|name| line.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
}

fn commands(lines: &[&str]) -> Vec<String> {
    let mut commands = vec![String::new()];
    for line in lines {
        // In these pages ` #` always starts a comment.
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        let last = commands.last_mut().expect("there is always one");
        last.push_str(line.strip_suffix('\\').unwrap_or(line));
        if !line.ends_with('\\') {
            commands.push(String::new());
        }
    }
    commands.retain(|command| !command.is_empty() && !command.starts_with('#'));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_says_how_its_block_runs() {
        let page = "\
Text.

<!-- first: tokengap demo --record a.tgap -->
<!-- run: together -->
```sh
tokengap tap --listen a \\
  --upstream b   # why
# nothing
tokengap watch x
```

```text
$ what is shown
```

<!-- not run: needs a cluster -->
```sh
kubectl get pods
```
";
        assert_eq!(
            blocks(page).expect("the page is sound"),
            [
                Block {
                    line: 5,
                    together: true,
                    first: Some("tokengap demo --record a.tgap".into()),
                    commands: vec!["tokengap tap --listen a --upstream b".into(), "tokengap watch x".into()],
                    ..Block::default()
                },
                Block {
                    line: 17,
                    not: Some("needs a cluster".into()),
                    commands: vec!["kubectl get pods".into()],
                    ..Block::default()
                },
            ]
        );
    }

    #[test]
    fn commands_that_would_be_passed_over_are_refused() {
        let unmarked = blocks("```text\ntokengap attach\n```\n").expect_err("no sh");
        assert!(unmarked.to_string().contains("line 1: `tokengap attach`"), "{unmarked}");
        let astray = blocks("<!-- not run: why -->\ntext\n").expect_err("no block");
        assert!(astray.to_string().starts_with("line 2"), "{astray}");
    }
}
