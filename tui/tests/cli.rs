//! Runs the command lines of the README and of `tests/cmd` and compares their output.

#[test]
fn the_documents_and_the_cases_are_true() {
    // Paths in the documents are relative to the repository root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the workspace's root");
    trycmd::TestCases::new().case("README.md").case("tui/tests/cmd/*.md");
}
