//! Runs the command lines of the README and of `tests/cmd` and compares their output.

#[test]
fn documented_commands_print_the_documented_output() {
    // Paths in the documents are relative to the repository root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the workspace's root");
    trycmd::TestCases::new().case("README.md").case("tokengap/tests/cmd/*.md");
}
