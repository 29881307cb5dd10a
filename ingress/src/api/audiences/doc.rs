//! How `/v1/audiences` is documented.

use serde_json::{Value, json};

use super::{
    AudienceAnswer, AudienceCreated, AudiencePage, ChangeAudience, ChangeMembers, CreateAudience, ListAudiences,
    MembersChanged,
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "audience_id": ID, "kind": "list", "name": "Friends", "description": null, "public_name": "News for friends",
        "public_description": null, "member_count": 3, "created_at": AT, "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new(
        "listAudiences",
        "List lists and tags",
        "Newest first. The id of a list is what campaigns take as `list_id`, of a tag as one of `tag_ids`.",
    )
    .query::<ListAudiences>()
    .answer::<AudiencePage>(200, "A page of audiences", json!({"audiences": [example()], "next_cursor": null}))
}

pub(super) fn create() -> Doc {
    Doc::new("createAudience", "Create a list or tag", "Names are unique among lists and among tags.")
        .body::<CreateAudience>(json!({"kind": "list", "name": "Friends", "public_name": "News for friends"}))
        .answer::<AudienceCreated<'_>>(201, "Created", json!({"audience_id": ID, "kind": "list", "name": "Friends"}))
        .leads_to("audience_id", &["getAudience", "changeAudience", "changeAudienceMembers"])
        .refuses(409, &["audience_already_exists"])
}

fn one(doc: Doc) -> Doc {
    doc.answer::<AudienceAnswer>(200, "The audience", json!({"audience": example()}))
        .refuses(404, &["audience_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getAudience", "Read a list or tag", ""))
}

pub(super) fn change() -> Doc {
    one(Doc::new(
        "changeAudience",
        "Rename a list or tag, or make a list a topic",
        "What is left out stays. Without its public name (`null`) a topic is a plain list again and loses its description.",
    ))
    .body::<ChangeAudience>(json!({"public_name": "News for friends"}))
    .refuses(409, &["audience_already_exists"])
}

pub(super) fn change_members() -> Doc {
    Doc::new(
        "changeAudienceMembers",
        "Add and remove members",
        "At most 1000 contacts in `add` and `remove` together. Those that are not known are answered in `not_found`; the rest is \
         done.",
    )
    .body::<ChangeMembers>(json!({"add": ["ann@example.com"]}))
    .answer::<MembersChanged>(
        200,
        "Done",
        json!({"audience_id": ID, "added": 1, "removed": 0, "departed": 0, "not_found": []}),
    )
    .refuses(404, &["audience_not_found"])
}
