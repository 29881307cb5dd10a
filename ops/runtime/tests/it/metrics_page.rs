//! `ops/metrics.md` is made from the list: `UPDATE=1 cargo test -p runtime --test it metrics_page` writes it.

use std::{fs, path::Path};

#[test]
fn the_page_says_what_the_list_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../metrics.md");
    let made = runtime::metric::page::render();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(made.lines()).find(|(old, new)| old != new);
    assert!(written == made, "ops/metrics.md is not what the list says, first at {differs:?}: run this with UPDATE=1");
}
