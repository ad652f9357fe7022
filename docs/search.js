// These pages contain nearly every word, so the search lists the pages that explain a word first.
const LISTS = ["CHANGELOG", "docs/api", "docs/benchmarks", "docs/cli", "docs/glossary", "docs/migration",
  "docs/papers", "docs/scenario-keys", "docs/settings", "docs/troubleshooting", "docs/architecture",
  "docs/algorithms", "docs/index", "README", "CONTRIBUTING"];

// What the words of `<!-- search: ... -->` find is shown by its heading, not by its page alone.
var Scorer = {
  score: (result) => {
    const [docname, , anchor, , score] = result;
    const file = Search._index.docnames.indexOf(docname);
    if (result[6] === SearchResultKind.index) {
      for (const [title, places] of Object.entries(Search._index.alltitles)) {
        if (places.some(([page, id]) => page === file && `#${id}` === anchor)) {
          result[1] = `${Search._index.titles[file]} > ${title}`;
        }
      }
    }
    const isAnyWord = result[6] === SearchResultKind.text && LISTS.includes(docname);
    return isAnyWord ? score / 10 : score;
  },

  // As Sphinx has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
