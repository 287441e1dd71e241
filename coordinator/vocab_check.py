class VocabCheck:
    def next_blocks(self, a, b): return None
    def texts(self, role, m): pass
    def forget(self, role): pass
