//! The reference page is what the definitions say. `UPDATE_GOLDEN=1 cargo test -p api` rewrites it.

mod golden;

#[test]
fn the_reference_page_is_up_to_date() {
    golden::check("../../docs/reference/api.md", &api::reference::markdown());
}
