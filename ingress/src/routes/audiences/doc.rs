//! How `/v1/audiences` is documented.

use serde_json::{Value, json};

use super::{DESCRIPTION_MAX_CHARS, MEMBERS_MAX, NAME_MAX_CHARS};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Schema, any_of, array, array_max, count, email, id, nullable, object, one_of, optional, page_of, required,
        success, text, text_max, time, words,
    },
};

const KINDS: [&str; 2] = ["list", "tag"];

fn audience() -> Schema {
    object([
        required("audience_id", id()),
        required("kind", one_of(KINDS)),
        required("name", text()),
        required("description", text().or_null()),
        required(
            "public_name",
            text().or_null().about("What its members see on their preferences page; a list with one is a topic."),
        ),
        required("public_description", text().or_null()),
        required("member_count", count()),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Audience")
}

fn example() -> Value {
    json!({
        "audience_id": ID, "kind": "list", "name": "Friends", "description": null, "public_name": "News for friends",
        "public_description": null, "member_count": 3, "created_at": AT,
        "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new(
        "listAudiences",
        "List lists and tags",
        "Newest first. The id of a list is what campaigns take as `list_id`, of a tag as one of `tag_ids`.",
    )
    .query_fields([optional("kind", one_of(KINDS))])
    .paged()
    .answer_schema(
        200,
        "A page of audiences",
        page_of("audiences", audience()),
        json!({"ok": true, "audiences": [example()], "next_cursor": null}),
    )
}

pub(super) fn create() -> Doc {
    Doc::new("createAudience", "Create a list or tag", "Names are unique among lists and among tags.")
        .body_schema(
            object([
                required("kind", one_of(KINDS)),
                required("name", words(NAME_MAX_CHARS).about("Must not look like an id.")),
                nullable("description", text_max(DESCRIPTION_MAX_CHARS)),
                nullable(
                    "public_name",
                    words(NAME_MAX_CHARS).about("Of a list only: makes it a topic on preferences pages."),
                ),
                nullable("public_description", text_max(DESCRIPTION_MAX_CHARS).about("Only with a public name.")),
            ]),
            json!({"kind": "list", "name": "Friends", "public_name": "News for friends"}),
        )
        .answer_schema(
            201,
            "Created",
            success([required("audience_id", id()), required("kind", one_of(KINDS)), required("name", text())]),
            json!({"ok": true, "audience_id": ID, "kind": "list", "name": "Friends"}),
        )
        .leads_to("audience_id", &["getAudience", "changeAudience", "changeAudienceMembers"])
        .refuses(409, &["audience_already_exists"])
}

pub(super) fn show() -> Doc {
    Doc::new("getAudience", "Read a list or tag", "")
        .answer_schema(
            200,
            "The audience",
            success([required("audience", audience())]),
            json!({"ok": true, "audience": example()}),
        )
        .refuses(404, &["audience_not_found"])
}

pub(super) fn change() -> Doc {
    Doc::new(
        "changeAudience",
        "Rename a list or tag, or make a list a topic",
        "What is left out stays. Without its public name (`null`) a topic is a plain list again and loses its description.",
    )
  .body_schema(
        object([
            nullable("name", words(NAME_MAX_CHARS)),
            nullable("description", text_max(DESCRIPTION_MAX_CHARS)),
            nullable("public_name", words(NAME_MAX_CHARS)),
            nullable("public_description", text_max(DESCRIPTION_MAX_CHARS)),
        ]),
        json!({"public_name": "News for friends"}),
    )
    .answer_schema(200, "Changed", success([required("audience", audience())]), json!({"ok": true, "audience": example()}))
    .refuses(404, &["audience_not_found"])
    .refuses(409, &["audience_already_exists"])
}

pub(super) fn change_members() -> Doc {
    let names = || array_max(any_of([id(), email()]), MEMBERS_MAX).about("Contact ids or addresses.");
    Doc::new(
        "changeAudienceMembers",
        "Add and remove members",
        "At most 1000 contacts in `add` and `remove` together. Those that are not known are answered in `not_found`; the rest is \
         done.",
    )
  .body_schema(object([optional("add", names()), optional("remove", names())]), json!({"add": ["ann@example.com"]}))
    .answer_schema(
        200,
        "Done",
        success([
            required("audience_id", id()),
            required("added", count()),
            required("removed", count()),
            required("departed", count().about("Of those to add: who left this topic by himself, and is not brought back.")),
            required("not_found", array(text())),
        ]),
        json!({"ok": true, "audience_id": ID, "added": 1, "removed": 0, "departed": 0, "not_found": []}),
    )
    .refuses(404, &["audience_not_found"])
}
