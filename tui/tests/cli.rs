//! The command line as its users meet it: the README's blocks and the cases of `tests/cmd`, run and compared.

#[test]
fn the_documents_and_the_cases_are_true() {
    // The documents are written for the repository's root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the workspace's root");
    trycmd::TestCases::new().case("README.md").case("tui/tests/cmd/*.md");
}
