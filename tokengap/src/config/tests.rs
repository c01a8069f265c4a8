//! A file and a command line result in the same flags, and the printed configuration reads back.

use clap::{ArgAction, CommandFactory};
use proptest::prelude::*;

use super::file::SOURCES;
use super::*;
use crate::cli::Cli;

/// Flags resulting from a command line and a file, or the error in the file.
fn read(line: &str, text: &str) -> Result<ArgMatches, String> {
    let command = Cli::command();
    let line: Vec<OsString> = line.split(' ').map(Into::into).collect();
    let request = FileRequest::find(&command, &line).ok_or("the line names no file")?;
    let line = insert_flags(&command, line, &request, text).map_err(|e| e.to_string())?;
    let matches = command.try_get_matches_from(line).map_err(|e| e.to_string())?;
    Ok(matches.subcommand_matches(&request.section).cloned().unwrap_or(matches))
}

fn error_of(line: &str, text: &str) -> String {
    read(line, text).err().unwrap_or_default()
}

const ATTACH: &str = "tokengap attach --config f.toml";

#[test]
fn the_command_line_overrides_the_source_section_and_that_the_live_section() {
    let text = "[live]\nslowest = 3\nrows = 4\njournal = 5\n[attach]\nrows = 6\njournal = 7\nheadless = true\n[demo]\nseed = 8\n";
    let flags = read(&format!("{ATTACH} --journal 9"), text).unwrap();
    let of = |id: &str| *flags.get_one::<usize>(id).unwrap();
    assert_eq!((of("slowest"), of("rows"), of("journal")), (3, 6, 9));
    assert!(flags.get_flag("headless"));
}

#[test]
fn configuration_errors_have_a_position() {
    let expected = [
        ("[attach]\nheadles = true", "f.toml:2:1: [attach] has no flag headles; did you mean headless?"),
        ("[atach]\n", "f.toml:1:2: unknown section [atach]; did you mean attach?"),
        ("[demo]\nsede = 1", "f.toml:2:1: [demo] has no flag sede; did you mean seed?"),
        ("[live]\nring = 1", "f.toml:2:1: [live] has no flag ring"),
        ("[attach]\n  headless = 3", "f.toml:2:14: headless must be true or false, not a whole number"),
        ("[attach]\nring = true", "f.toml:2:8: ring must be a string or a number, not true or false"),
        ("attach = 1", "f.toml:1:1: [attach] is a section: put its flags below a line [attach]"),
    ];
    for (text, error) in expected {
        assert_eq!(error_of(ATTACH, text), error);
    }
    let value = error_of(ATTACH, "[attach]\nduration = \"soon\"");
    assert!(value.starts_with("f.toml:2:12: invalid value 'soon' for '--duration <T>'"), "{value}");
    let syntax = error_of(ATTACH, "[attach]\nrows = = 1");
    assert!(syntax.starts_with("f.toml:2:"), "{syntax}");
}

/// Flag names exist only in clap. Setting each flag to an invalid value shows that a file can set it.
#[test]
fn every_flag_of_every_live_source_is_settable() {
    let command = Cli::command();
    for section in SOURCES {
        let all = command.find_subcommand(section).unwrap().get_arguments();
        for arg in
            all.filter(|arg| arg.get_long().is_some() && !["config", "print_config"].contains(&arg.get_id().as_str()))
        {
            let long = arg.get_long().unwrap();
            let error = error_of(
                &format!("tokengap {section} --config f.toml"),
                &format!("[{section}]\n{long} = 1979-05-27\n"),
            );
            assert!(error.contains(&format!("{long} must be ")), "[{section}] {long}: {error:?}");
        }
    }
}

fn value(arg: &clap::Arg) -> BoxedStrategy<String> {
    let values: Vec<String> = arg.get_possible_values().iter().map(|v| format!("{:?}", v.get_name())).collect();
    match arg.get_action() {
        ArgAction::SetTrue => any::<bool>().prop_map(|b| b.to_string()).boxed(),
        ArgAction::Count => (0..4u8).prop_map(|n| n.to_string()).boxed(),
        _ if !values.is_empty() => prop::sample::select(values).boxed(),
        _ => prop_oneof![(1..1000u32).prop_map(|n| n.to_string()), "[a-z./ =\\-]{1,12}".prop_map(|s| format!("{s:?}"))]
            .boxed(),
    }
}

fn files() -> impl Strategy<Value = (String, String)> {
    let command = Cli::command();
    let of = |section: &'static str| {
        let lines: Vec<BoxedStrategy<Option<String>>> = flags::settable_flags(&command, section)
            .iter()
            .map(|arg| {
                let long = arg.get_long().unwrap_or_default().to_owned();
                prop::option::weighted(0.2, value(arg).prop_map(move |v| format!("{long} = {v}"))).boxed()
            })
            .collect();
        lines.prop_map(move |lines| {
            (
                section.to_owned(),
                format!("[{section}]\n{}\n", lines.into_iter().flatten().collect::<Vec<_>>().join("\n")),
            )
        })
    };
    prop::strategy::Union::new(SOURCES.map(of))
}

proptest! {
    #[test]
    fn printed_configuration_can_be_read_back((section, text) in files()) {
        let line = format!("tokengap {section} --config f.toml");
        // Files with values that clap rejects are skipped here.
        if let Ok(first) = read(&line, &text) {
            let command = Cli::command();
            let printed = effective_config(&command, &section, &first);
            let second = read(&line, &printed).map_err(TestCaseError::fail)?;
            prop_assert_eq!(effective_config(&command, &section, &second), printed);
        }
    }

    #[test]
    fn no_configuration_text_panics(text in "[\\PC\n]{0,200}") {
        drop(read(ATTACH, &text));
    }
}
